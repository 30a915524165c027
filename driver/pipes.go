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

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// heldPipes shows the entries of an MPS daemon's pipe directory in a directory
// of the driver's own, one per container, while the container starts. Tasks of
// other drivers can write into the daemon's: by its names, the runtime could be led
// to any file of the host, by a symbolic link put there in the right moment.
type heldPipes struct{ dir string }

func newHeldPipes(s settings) heldPipes {
	return heldPipes{dir: filepath.Join(s.StateDir, "pipes")}
}

// create holds what the daemon of a share made. A share without one has nothing.
func (h heldPipes) create(id string, share spec.Share) ([]spec.Pipe, error) {
	from, to := share.PipeDir(), filepath.Join(h.dir, id)
	if from == "" {
		return nil, nil
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return nil, fmt.Errorf("hold MPS pipes: %w", err)
	}
	var held []spec.Pipe
	for _, name := range spec.PipeNames {
		err := bindEntry(filepath.Join(from, name), filepath.Join(to, name))
		switch {
		case err == nil:
			held = append(held, spec.Pipe{Name: name, Source: filepath.Join(to, name)})
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("hold MPS pipes: %w", err)
		}
	}
	if len(held) == 0 || held[0].Name != spec.PipeNames[0] {
		return nil, fmt.Errorf("hold MPS pipes: the socket of its MPS daemon is gone")
	}
	return held, nil
}

// bindEntry mounts a socket, a pipe or a file on a new path. Whatever else lies
// there is not a daemon's, and does not exist.
func bindEntry(path, target string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFSOCK, unix.S_IFIFO, unix.S_IFREG:
	default:
		return &fs.PathError{Op: "hold", Path: path, Err: fs.ErrNotExist}
	}
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND, ""); err != nil {
		return &fs.PathError{Op: "mount", Path: target, Err: err}
	}
	return nil
}

// remove lets go; a container that has started keeps its own mounts.
func (h heldPipes) remove(_ context.Context, id string) error {
	dir := filepath.Join(h.dir, id)
	var problems []error
	for _, name := range spec.PipeNames {
		problems = append(problems, unmount(filepath.Join(dir, name)))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func (h heldPipes) ids(before time.Time) ([]string, error) { return namesOlderThan(h.dir, before) }

// unmount takes a mount away, where there is one.
func unmount(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	// EINVAL: nothing is mounted there.
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return &fs.PathError{Op: "unmount", Path: path, Err: err}
}
