// SPDX-License-Identifier: MPL-2.0

package rooted

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RefuseLinks makes programs of the host follow no symbolic link in a directory, given by
// the names on the way to it, or below: opening or changing a file by its name fails with
// ELOOP where a task has put a link. A directory that is not a mount point becomes one, of
// itself. Kernels before 5.10 follow links all the same.
func (h *Handle) RefuseLinks(names ...string) error {
	err := h.remount(names)
	if errors.Is(err, unix.EINVAL) { // it is not a mount point
		if err = h.mountOnItself(names); err == nil {
			err = h.remount(names)
		}
	}
	if err != nil {
		return &fs.PathError{Op: "refuse links", Path: filepath.Join(names...), Err: err}
	}
	return nil
}

func (h *Handle) remount(names []string) error {
	dir, err := h.Child(names...)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.control(func(fd int) error {
		have, err := RestrictionsOf(descriptor(fd))
		if err != nil {
			return err
		}
		return unix.Mount("", descriptor(fd), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSYMFOLLOW|have, "")
	})
}

func (h *Handle) mountOnItself(names []string) error {
	dir, err := h.Child(names...)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.control(func(fd int) error { return unix.Mount(descriptor(fd), descriptor(fd), "", unix.MS_BIND, "") })
}
