// SPDX-License-Identifier: MPL-2.0

// Package sysfstest spoils trees of the kernel's files, as broken drivers and devices do.
package sysfstest

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Copy makes a tree like another, and keeps its links.
func Copy(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// Files lists the files of a tree whose paths hold one of some words.
func Files(t *testing.T, root string, words ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		for _, word := range words {
			if err == nil && d.Type().IsRegular() && strings.Contains(path, word) {
				found = append(found, path)
				break
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// values are what no reader expects a driver to write.
var values = []string{"", "\n", "-1", "0", "4294967295", "18446744073709551615", "99999999999999999999999", "0xffffffff", "N/A", "\x00\xff\xfe", "ue: -5", "simd_count", "simd_count 1 2", "node_to 70000\ntype 11",
	"Device or resource busy", "CPX", "spx ", "1.5", "\u2028", "drm-pdev: 0000:80:00.0"}

// Spoil does something to a file: it is gone, empty, garbage, huge, a directory, a
// pipe, or a link to itself.
func Spoil(t *testing.T, r *rand.Rand, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	var err error
	switch r.IntN(12) {
	case 0: // it is gone
	case 1:
		err = os.WriteFile(path, nil, 0o644)
	case 2:
		err = os.WriteFile(path, []byte(strings.Repeat("9", 1<<20)), 0o644)
	case 3:
		err = os.Mkdir(path, 0o755)
	case 4:
		err = unix.Mkfifo(path, 0o644)
	case 5:
		err = os.Symlink(filepath.Base(path), path)
	case 6:
		garbage := make([]byte, r.IntN(200))
		for n := range garbage {
			garbage[n] = byte(r.IntN(256))
		}
		err = os.WriteFile(path, garbage, 0o644)
	default:
		err = os.WriteFile(path, []byte(values[r.IntN(len(values))]), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
