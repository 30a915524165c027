// SPDX-License-Identifier: MPL-2.0

// Package hostdir makes what containers see of the host's memory and of its MPS daemons:
// file systems in memory, each in a directory named after its container, so that it is
// found and undone whatever happens.
package hostdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// NamesOlderThan lists a directory that need not exist.
func NamesOlderThan(dir string, before time.Time) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	var names []string
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.ModTime().Before(before) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// unmount takes a mount away with all below it, where there is one.
func unmount(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	// EINVAL: nothing is mounted there.
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return &fs.PathError{Op: "unmount", Path: path, Err: err}
}

// unmountAlone takes away all that is mounted on a directory, one over the other, and
// nothing anywhere else: what a task sees stays.
func unmountAlone(path string) error {
	for {
		err := unix.Mount("", path, "", unix.MS_PRIVATE|unix.MS_REC, "")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
			return nil // nothing is mounted there
		}
		if err == nil {
			err = unmount(path)
		}
		if err != nil {
			return err
		}
	}
}
