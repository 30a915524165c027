// SPDX-License-Identifier: MPL-2.0

package rooted

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// LimitInodes bounds how many files there can be on the file system in memory that a
// directory is the root of. A directory of another kind is left alone, and so is one that
// has more files already, and all on kernels before 5.2, which cannot change this alone.
func (h *Handle) LimitInodes(most int) error {
	return h.control(func(dir int) error {
		var is unix.Statfs_t
		if err := unix.Fstatfs(dir, &is); err != nil {
			return &fs.PathError{Op: "statfs", Path: h.file.Name(), Err: err}
		}
		if is.Type != unix.TMPFS_MAGIC {
			return nil
		}
		system, err := unix.Fspick(unix.AT_FDCWD, descriptor(dir), unix.FSPICK_CLOEXEC)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
			return nil
		}
		if err != nil {
			return &fs.PathError{Op: "fspick", Path: h.file.Name(), Err: err}
		}
		defer unix.Close(system)
		err = unix.FsconfigSetString(system, "nr_inodes", strconv.Itoa(most))
		if err == nil {
			err = unix.FsconfigReconfigure(system)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("bound the files in %s: %w", h.file.Name(), err)
		}
		return nil
	})
}
