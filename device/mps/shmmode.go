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

// guardPause is how long to wait between two looks: a task that changes modes in a loop, of
// the directory or of its own files there, causes no loop here.
const guardPause = time.Millisecond

// restoreShm gives the shared memory its mode and owner, and reports whether it had others.
func (d dirs) restoreShm() (changed bool, err error) {
	return restoreDir(d.shm, 0o777|os.ModeSticky)
}

// restoreDir gives a directory its mode, and root for an owner.
func restoreDir(path string, mode os.FileMode) (changed bool, err error) {
	var now unix.Stat_t
	if err := unix.Lstat(path, &now); err != nil {
		return false, fmt.Errorf("look at %s: %w", path, err)
	}
	if now.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, fmt.Errorf("%s is not a directory", path)
	}
	want := uint32(mode.Perm())
	if mode&os.ModeSticky != 0 {
		want |= unix.S_ISVTX
	}
	if now.Mode&0o7777 == want && now.Uid == 0 && now.Gid == 0 {
		return false, nil
	}
	return true, errors.Join(os.Chown(path, 0, 0), os.Chmod(path, mode))
}

// guardShm restores the shared memory whenever a task changes its mode, until the context
// ends. The first time is told.
func (k *keeper) guardShm(ctx context.Context) error {
	return guardDir(ctx, k.control.dirs.shm, unix.IN_ATTRIB, k.control.dirs.restoreShm, func() {
		k.log.Warn("a task changed the mode or the owner of the shared memory, which is restored from now on", "device", k.control.uuid)
	})
}

// guardDir restores a directory now, and whenever something of a kind happens there, until the context
// ends. tell is called the first time that something had to be restored by then.
func guardDir(ctx context.Context, dir string, kinds uint32, restore func() (changed bool, err error), tell func()) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	if _, err := unix.InotifyAddWatch(fd, dir, kinds|unix.IN_ONLYDIR); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	defer context.AfterFunc(ctx, func() { events.Close() })()
	told, buffer := false, make([]byte, 64<<10)
	for {
		changed, err := restore()
		if err != nil {
			return err
		}
		if changed && !told {
			told = true
			tell()
		}
		if _, err := events.Read(buffer); err != nil {
			return nil // the context has ended
		}
		time.Sleep(guardPause)
	}
}
