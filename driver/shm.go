package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// sharedMemory makes the /dev/shm of tasks that let others share it: a tmpfs of
// the host's, in a directory named after the container. It lives as long as the
// container that it was made for; whoever joined keeps what it has mounted.
type sharedMemory struct{ dir string }

func newSharedMemory(s settings) sharedMemory {
	return sharedMemory{dir: filepath.Join(s.StateDir, "shm")}
}

// of returns the directory of a container; it need not exist.
func (m sharedMemory) of(id string) string { return filepath.Join(m.dir, id) }

// Files take the kernel's memory beside their size: one for each bytesPerFile is more than
// frameworks make, and a small part of it.
const (
	leastFiles   = 1024
	bytesPerFile = 16 << 10
)

// create mounts the memory of a container and returns its directory.
func (m sharedMemory) create(id string, bytes int64) (string, error) {
	dir := m.of(id)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return "", fmt.Errorf("make shared memory: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	options := fmt.Sprintf("mode=1777,size=%d,nr_inodes=%d", bytes, max(leastFiles, bytes/bytesPerFile))
	if err := unix.Mount("shm", dir, "tmpfs", flags, options); err != nil {
		return "", errors.Join(fmt.Errorf("mount shared memory on %s: %w", dir, err), os.Remove(dir))
	}
	return dir, nil
}

// remove undoes create. Nothing to undo is no error.
func (m sharedMemory) remove(_ context.Context, id string) error {
	dir := m.of(id)
	if err := unmount(dir); err != nil {
		return fmt.Errorf("remove shared memory: %w", err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove shared memory: %w", err)
	}
	return nil
}

func (m sharedMemory) ids(before time.Time) ([]string, error) { return namesOlderThan(m.dir, before) }

// namesOlderThan lists a directory that need not exist.
func namesOlderThan(dir string, before time.Time) ([]string, error) {
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
