// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// shmInodes is how many files there can be in a daemon's shared memory: the
// kernel counts them beside the size.
const shmInodes = 65536

// limitShm sees to it that the daemon's shared memory is a tmpfs of its size.
// Without one a task could fill the host's memory past its own limit. A daemon
// that lives keeps its directory: another one in its place would part it
// from its clients.
func (c control) limitShm(daemon process) error {
	if c.hostShm {
		return nil
	}
	mounted, err := c.dirs.shmMounted()
	if err != nil {
		return err
	}
	if daemon != (process{}) && !sameFile(fmt.Sprintf("/proc/%d/root/dev/shm", daemon.PID), c.dirs.shm) {
		return fmt.Errorf("%s is not the shared memory of process %d any more; end its tasks and kill it", c.dirs.shm, daemon.PID)
	}
	if daemon != (process{}) && !mounted {
		return nil // it was started by a release that mounted nothing
	}
	return c.mountShm(mounted)
}

// mountShm mounts the tmpfs, or gives the mounted one its size.
func (c control) mountShm(mounted bool) error {
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if mounted {
		flags |= unix.MS_REMOUNT
	}
	options := fmt.Sprintf("mode=1777,size=%dm,nr_inodes=%d", c.shmMiB, shmInodes)
	if err := unix.Mount("nomad-gpu", c.dirs.shm, "tmpfs", flags, options); err != nil {
		return fmt.Errorf("mount shared memory of %d MiB on %s: %w", c.shmMiB, c.dirs.shm, err)
	}
	return nil
}

// shmMounted reports whether something is mounted on the shared memory. The
// directory around it may itself lie in a tmpfs.
func (d dirs) shmMounted() (bool, error) {
	var inner, outer unix.Stat_t
	if err := unix.Lstat(d.shm, &inner); err != nil {
		return false, fmt.Errorf("look at %s: %w", d.shm, err)
	}
	if err := unix.Lstat(d.base, &outer); err != nil {
		return false, fmt.Errorf("look at %s: %w", d.base, err)
	}
	return inner.Dev != outer.Dev, nil
}

// unmountShm gives the memory back. It is emptied first, because the namespaces
// of other daemons may hold the mount too.
func (d dirs) unmountShm() error {
	mounted, err := d.shmMounted()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !mounted {
		return err
	}
	for _, name := range d.shmNames() {
		_ = os.RemoveAll(filepath.Join(d.shm, name)) // the unmount goes on
	}
	if err := unix.Unmount(d.shm, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", d.shm, err)
	}
	return nil
}

// shmNames lists what lies in the shared memory.
func (d dirs) shmNames() []string {
	entries, err := os.ReadDir(d.shm)
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// clockStep is more than a file's times lag behind the clock.
const clockStep = 100 * time.Millisecond

// sweepShm removes files that tasks left, given the names that are the daemon's own
// and a moment at which no task was there. A younger file may be a new task's.
func (d dirs) sweepShm(own []string, empty time.Time) error {
	var problems []error
	for _, name := range d.shmNames() {
		path := filepath.Join(d.shm, name)
		if strings.HasPrefix(name, "cuda") || slices.Contains(own, name) || !olderThan(path, empty.Add(-clockStep)) {
			continue
		}
		problems = append(problems, os.RemoveAll(path))
	}
	return errors.Join(problems...)
}

// olderThan goes by the change of the inode, which no task can set back.
func olderThan(path string, moment time.Time) bool {
	var stat unix.Stat_t
	return unix.Lstat(path, &stat) == nil && time.Unix(stat.Ctim.Unix()).Before(moment)
}

func sameFile(a, b string) bool {
	one, err1 := os.Stat(a)
	other, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(one, other)
}
