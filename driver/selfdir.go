// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/hostdir"
)

// selfDirs are the directories in which tasks find their sockets: one per container, which
// the container sees by a read-only mount.
type selfDirs struct{ dir string }

func newSelfDirs(s config.Settings) selfDirs { return selfDirs{dir: filepath.Join(s.StateDir, "self")} }

// of returns the directory of a container; it need not exist.
func (d selfDirs) of(id string) string { return filepath.Join(d.dir, id) }

// create makes the directory of a container, with places for its mounts: the
// container can make none.
func (d selfDirs) create(id string, dirs, files []string) (string, error) {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return "", fmt.Errorf("make the directory of the task's socket: %w", err)
	}
	at := d.of(id)
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(at, dir), 0o755); err != nil {
			return "", fmt.Errorf("make the directory of the task's socket: %w", err)
		}
	}
	for _, file := range files {
		place := filepath.Join(at, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(place), 0o755), os.WriteFile(place, nil, 0o644)); err != nil {
			return "", fmt.Errorf("make the directory of the task's socket: %w", err)
		}
	}
	return at, nil
}

// Remove undoes create; where there is nothing, it succeeds.
func (d selfDirs) Remove(_ context.Context, id string) error { return os.RemoveAll(d.of(id)) }

func (d selfDirs) IDs(before time.Time) ([]string, error) {
	return hostdir.NamesOlderThan(d.dir, before)
}

// selfProgram is the host's program that tasks speak to their sockets with, "" where it is
// not installed.
func selfProgram(s config.Settings) string {
	if s.SelfPath == "" {
		return ""
	}
	program, err := exec.LookPath(s.SelfPath)
	if err != nil {
		return ""
	}
	return program
}
