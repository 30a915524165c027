// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The root of a task may change the mode and the owner of the shared memory that it sees,
// as it may those of all files without an owner of its own: no mount forbids it and leaves
// the directory writable. Tasks of other users would then not reach the MPS server.

// shmPause is how long to wait between two looks: a task that changes modes in a loop, of
// the directory or of its own files there, causes no loop here.
const shmPause = time.Millisecond

// restoreShm gives the shared memory its mode and owner, and reports whether it had others.
func (d dirs) restoreShm() (changed bool, err error) {
	var now unix.Stat_t
	if err := unix.Lstat(d.shm, &now); err != nil {
		return false, fmt.Errorf("look at %s: %w", d.shm, err)
	}
	if now.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, fmt.Errorf("%s is not a directory", d.shm)
	}
	if now.Mode&0o7777 == 0o1777 && now.Uid == 0 && now.Gid == 0 {
		return false, nil
	}
	return true, errors.Join(os.Chown(d.shm, 0, 0), os.Chmod(d.shm, 0o777|os.ModeSticky))
}

// guardShm restores the shared memory whenever a task changes its mode, until the context
// ends. The first time is told.
func (k *keeper) guardShm(ctx context.Context) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", k.control.dirs.shm, err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	if _, err := unix.InotifyAddWatch(fd, k.control.dirs.shm, unix.IN_ATTRIB|unix.IN_ONLYDIR); err != nil {
		return fmt.Errorf("watch %s: %w", k.control.dirs.shm, err)
	}
	defer context.AfterFunc(ctx, func() { events.Close() })()
	told, buffer := false, make([]byte, 64<<10)
	for {
		changed, err := k.control.dirs.restoreShm()
		if err != nil {
			return err
		}
		if changed && !told {
			told = true
			k.log.Warn("a task changed the mode or the owner of the shared memory, which is restored from now on", "device", k.control.uuid)
		}
		if _, err := events.Read(buffer); err != nil {
			return nil // the context has ended
		}
		time.Sleep(shmPause)
	}
}
