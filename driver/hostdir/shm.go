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
)

// SharedMemory makes the /dev/shm of tasks that let others share it: a tmpfs of
// the host's, in a directory named after the container. It lives as long as the
// container that it was made for; a container that joined keeps its mount.
type SharedMemory struct{ dir string }

// SharedMemoryIn returns that below a directory, which need not exist.
func SharedMemoryIn(dir string) SharedMemory { return SharedMemory{dir} }

// Of returns the directory of a container; it need not exist.
func (m SharedMemory) Of(id string) string { return filepath.Join(m.dir, id) }

// Files take the kernel's memory beside their size: one for each bytesPerFile is more than
// frameworks make, and a small part of it.
const (
	leastFiles   = 1024
	bytesPerFile = 16 << 10
)

// Create mounts the memory of a container and returns its directory.
func (m SharedMemory) Create(id string, bytes int64) (string, error) {
	dir := m.Of(id)
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

// Remove undoes Create. Where there is nothing to undo, it succeeds.
func (m SharedMemory) Remove(_ context.Context, id string) error {
	dir := m.Of(id)
	if err := unmount(dir); err != nil {
		return fmt.Errorf("remove shared memory: %w", err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove shared memory: %w", err)
	}
	return nil
}

// IDs names the containers whose memory is older than before.
func (m SharedMemory) IDs(before time.Time) ([]string, error) { return NamesOlderThan(m.dir, before) }
