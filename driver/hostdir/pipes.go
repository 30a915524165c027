// SPDX-License-Identifier: MPL-2.0

package hostdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// Pipes are the directories in which containers find the MPS daemon of their GPU:
// a small file system in memory for each, in which lie only the
// daemon's sockets, mounted one by one. A container sees nothing of the daemon's own
// directory, so it cannot take that from its neighbors, lock them out or fill the
// host's /run; damage to its own directory is its own loss.
//
// When a daemon is replaced, a new directory with the sockets of the new one is mounted
// over the old one, also in containers that run: mounts here appear there.
// So a program that is started then meets limits again. There is no moment in which a
// task could put something of its own in the place of a socket, and no file that a
// task made is ever used.
type Pipes struct{ dir string }

// PipesIn returns those below a directory, which need not exist.
func PipesIn(dir string) Pipes { return Pipes{dir} }

// shown is the directory that a container sees, next the one that it is to see.
func (d Pipes) shown(id string) string { return filepath.Join(d.dir, id, "pipe") }
func (d Pipes) next(id string) string  { return filepath.Join(d.dir, id, "next") }

const (
	pipeDirFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	// pipeDirLimits are what a task may put into its directory.
	pipeDirLimits = "mode=0755,size=64k,nr_inodes=64"
)

// Create makes the directory of a container with the entries of a daemon's.
func (d Pipes) Create(id, daemon string) (string, error) {
	shown := d.shown(id)
	for _, dir := range []string{shown, d.next(id)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", fmt.Errorf("make MPS directory: %w", err)
		}
	}
	if err := unix.Mount("mps", shown, "tmpfs", pipeDirFlags, pipeDirLimits); err != nil {
		return "", fmt.Errorf("make MPS directory %s: %w", shown, err)
	}
	if err := unix.Mount("", shown, "", unix.MS_SHARED, ""); err != nil {
		return "", fmt.Errorf("make MPS directory %s: %w", shown, err)
	}
	return shown, d.show(id, daemon)
}

// show mounts a new directory over what a container sees, with the entries that a
// daemon's directory has now.
func (d Pipes) show(id, daemon string) (err error) {
	next := d.next(id)
	if err := unix.Mount("mps", next, "tmpfs", pipeDirFlags, pipeDirLimits); err != nil {
		return fmt.Errorf("show MPS daemon: %w", err)
	}
	defer func() { err = errors.Join(err, unmountAlone(next)) }()
	for i, name := range spec.PipeNames {
		err := bindEntry(filepath.Join(daemon, name), filepath.Join(next, name))
		if err != nil && (i == 0 || !errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("show MPS daemon: %w", err) // without the first there is none
		}
	}
	// The daemon's own is a lock against a second daemon, which a task could hold.
	lock := filepath.Join(next, "control_lock")
	if err := errors.Join(os.WriteFile(lock, nil, 0o666), os.Chmod(lock, 0o666)); err != nil {
		return fmt.Errorf("show MPS daemon: %w", err)
	}
	if err := unix.Mount(next, d.shown(id), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("show MPS daemon: %w", err)
	}
	return nil
}

// bindEntry mounts an entry of a daemon's directory, read-only: programs connect to a
// socket and write to a pipe all the same, and its mode is out of reach.
func bindEntry(source, target string) error {
	fd, _, err := openEntry(source)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND, ""); err != nil {
		return &fs.PathError{Op: "mount", Path: target, Err: err}
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|pipeDirFlags, ""); err != nil {
		return &fs.PathError{Op: "mount", Path: target, Err: err}
	}
	return nil
}

// openEntry opens a socket, a pipe or a file without effect on it. Whatever else lies
// there is no daemon's, and does not exist.
func openEntry(path string) (int, unix.Stat_t, error) {
	var stat unix.Stat_t
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, stat, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err := unix.Fstat(fd, &stat); err != nil {
		_ = unix.Close(fd)
		return -1, stat, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFSOCK, unix.S_IFIFO, unix.S_IFREG:
		return fd, stat, nil
	}
	_ = unix.Close(fd)
	return -1, stat, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
}

// Follow shows a container the daemon that there is now, and reports whether that is
// another than before. A container of an earlier release has no directory here.
func (d Pipes) Follow(id, daemon string) (changed bool, err error) {
	if _, err := os.Lstat(d.shown(id)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	for _, name := range spec.PipeNames {
		now, is, err := openEntry(filepath.Join(daemon, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		_ = unix.Close(now)
		have, was, err := openEntry(filepath.Join(d.shown(id), name))
		if err == nil {
			_ = unix.Close(have)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		changed = changed || is.Dev != was.Dev || is.Ino != was.Ino
	}
	if !changed {
		return false, nil
	}
	return true, d.show(id, daemon)
}

// Remove undoes Create, as far as that came; where there is nothing, it succeeds.
func (d Pipes) Remove(_ context.Context, id string) error {
	for _, dir := range []string{d.next(id), d.shown(id)} {
		if err := unmountAlone(dir); err != nil {
			return err
		}
	}
	return os.RemoveAll(filepath.Join(d.dir, id))
}

// IDs names the containers whose directory is older than before.
func (d Pipes) IDs(before time.Time) ([]string, error) { return NamesOlderThan(d.dir, before) }
