// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is a file system with the kernel's files below a root.
type Tree struct{ Root string }

const (
	// longestFile is how much of a file is read, and mostNames of a directory.
	longestFile = 64 << 10
	mostNames   = 8192
)

// Path is where a file lies.
func (t Tree) Path(elem ...string) string {
	return filepath.Join(append([]string{t.Root}, elem...)...)
}

// Bytes reads a regular file, as far as it is bounded; false where there is none.
func (t Tree) Bytes(elem ...string) ([]byte, bool) {
	file, err := os.OpenFile(t.Path(elem...), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, false
	}
	text, err := io.ReadAll(io.LimitReader(file, longestFile))
	return text, err == nil
}

// Text is a file's content without the white space around it; empty is absent.
func (t Tree) Text(elem ...string) (string, bool) {
	text, ok := t.Bytes(elem...)
	trimmed := strings.TrimSpace(strings.ToValidUTF8(string(text), "?"))
	return trimmed, ok && trimmed != ""
}

// Line is the first line of a file.
func (t Tree) Line(elem ...string) string {
	text, _ := t.Text(elem...)
	first, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(first)
}

// Int is the number that a file holds, decimal or with 0x before it.
func (t Tree) Int(elem ...string) (int64, bool) {
	text, ok := t.Text(elem...)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 0, 64)
	return n, err == nil
}

// Amount is a number that cannot be negative, such as a size; -1 is absent.
func (t Tree) Amount(elem ...string) int64 {
	n, ok := t.Int(elem...)
	if !ok || n < 0 {
		return -1
	}
	return n
}

// Properties are the lines "key number" of a file. Lines of another form are left
// out.
func (t Tree) Properties(elem ...string) map[string]uint64 {
	found := map[string]uint64{}
	text, _ := t.Text(elem...)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
			found[fields[0]] = n
		}
	}
	return found
}

// Names lists a directory in order.
func (t Tree) Names(elem ...string) []string {
	dir, err := os.OpenFile(t.Path(elem...), os.O_RDONLY|unix.O_NONBLOCK|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(mostNames)
	slices.Sort(names)
	return names
}

// Each lists a directory of any size, such as that of a process's open files.
func (t Tree) Each(elem ...string) iter.Seq[string] {
	return func(yield func(string) bool) {
		dir, err := os.OpenFile(t.Path(elem...), os.O_RDONLY|unix.O_NONBLOCK|unix.O_DIRECTORY, 0)
		if err != nil {
			return
		}
		defer dir.Close()
		for {
			names, err := dir.Readdirnames(mostNames)
			for _, name := range names {
				if !yield(name) {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
}

// Has reports whether a file or directory is there.
func (t Tree) Has(elem ...string) bool {
	_, err := os.Stat(t.Path(elem...))
	return err == nil
}

// Link is the last part of what a symbolic link leads to, such as the driver's name of
// ".../driver"; empty where there is none.
func (t Tree) Link(elem ...string) string {
	target, err := os.Readlink(t.Path(elem...))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// Write replaces what a file of the kernel's says.
func (t Tree) Write(value string, elem ...string) error {
	file, err := os.OpenFile(t.Path(elem...), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(value)
	if closed := file.Close(); err == nil {
		err = closed
	}
	return err
}
