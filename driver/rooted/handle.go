// SPDX-License-Identifier: MPL-2.0

package rooted

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// Handle is one file of any kind, held by a descriptor that can neither be read
// nor written and has no effect on a device or a pipe.
type Handle struct {
	file *os.File
	stat unix.Stat_t
}

// OpenHost opens a path that Nomad or the operator chose. Its links are followed:
// no tenant can make or change them.
func OpenHost(path string) (*Handle, error) {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return newHandle(f)
}

// newHandle takes over a descriptor, also when it fails.
func newHandle(f *os.File) (*Handle, error) {
	h := &Handle{file: f}
	if err := h.control(func(fd int) error { return unix.Fstat(fd, &h.stat) }); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "stat", Path: f.Name(), Err: err}, f.Close())
	}
	return h, nil
}

// control calls do with the descriptor, which stays open meanwhile.
func (h *Handle) control(do func(fd int) error) error {
	raw, err := h.file.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := raw.Control(func(fd uintptr) { result = do(int(fd)) }); err != nil {
		return err
	}
	return result
}

// Close lets the file go.
func (h *Handle) Close() error { return h.file.Close() }

// Child opens a file below a directory by the names on the way to it; none may be a
// link. It is for names that Nomad made and tenants could replace.
func (h *Handle) Child(names ...string) (*Handle, error) {
	at := h
	for i, name := range names {
		next, err := at.child(name)
		if at != h {
			_ = at.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("open %q: %w", strings.Join(names[:i+1], "/"), err)
		}
		at = next
	}
	return at, nil
}

func (h *Handle) child(name string) (*Handle, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsRune(name, '/') {
		return nil, fmt.Errorf("%q is not the name of a file", name)
	}
	next, err := h.openat(name, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	child, err := newHandle(next)
	if err != nil {
		return nil, err
	}
	if child.kind() == unix.S_IFLNK {
		return nil, errors.Join(ErrLink, child.Close())
	}
	return child, nil
}

// ErrLink means that a symbolic link stands where none may be.
var ErrLink = errors.New("it is a symbolic link")

func (h *Handle) openat(name string, flags int, mode uint32) (*os.File, error) {
	fd := -1
	err := h.control(func(dir int) (err error) {
		fd, err = unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(h.file.Name(), name)), nil
}

// Resolve opens what a tenant names below a directory. Links are followed as if
// the directory were the root of everything, so nothing above it is ever reached.
func (h *Handle) Resolve(path string) (*Handle, error) {
	if path == "." || path == "" {
		return h.dup()
	}
	f, err := pathrs.OpenatInRoot(h.file, path)
	if err != nil {
		return nil, err
	}
	return newHandle(f)
}

func (h *Handle) dup() (*Handle, error) {
	fd := -1
	err := h.control(func(old int) (err error) {
		fd, err = unix.FcntlInt(uintptr(old), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return newHandle(os.NewFile(uintptr(fd), h.file.Name()))
}

func (h *Handle) kind() uint32 { return h.stat.Mode & unix.S_IFMT }

// IsDir, IsRegular and IsPipe say what the file is.
func (h *Handle) IsDir() bool     { return h.kind() == unix.S_IFDIR }
func (h *Handle) IsRegular() bool { return h.kind() == unix.S_IFREG }
func (h *Handle) IsPipe() bool    { return h.kind() == unix.S_IFIFO }
func (h *Handle) IsSocket() bool  { return h.kind() == unix.S_IFSOCK }

// IsNull reports whether the file is the null device.
func (h *Handle) IsNull() bool {
	return h.kind() == unix.S_IFCHR && h.stat.Rdev == unix.Mkdev(1, 3)
}

// Mountable reports whether a container may be shown the file: devices are not
// given by way of a mount.
func (h *Handle) Mountable() bool { return h.IsDir() || h.IsRegular() || h.IsPipe() || h.IsSocket() }

// Kernels reports whether a file lies in a file system of the kernel's own, such as /proc.
func (h *Handle) Kernels() bool {
	var system unix.Statfs_t
	err := h.control(func(fd int) error { return unix.Fstatfs(fd, &system) })
	return err != nil || slices.Contains([]int64{unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC}, system.Type)
}

// HostPath is where the file lies now, without links.
func (h *Handle) HostPath() (string, error) {
	var path string
	err := h.control(func(fd int) (err error) {
		path, err = os.Readlink(descriptor(fd))
		return err
	})
	return path, err
}

// MountID is the kernel's number of the mount that the file lies on.
func (h *Handle) MountID() (int, error) {
	var text []byte
	err := h.control(func(fd int) (err error) {
		text, err = os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
		return err
	})
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if number, found := strings.CutPrefix(line, "mnt_id:"); found {
			return strconv.Atoi(strings.TrimSpace(number))
		}
	}
	return 0, fmt.Errorf("the kernel does not tell the mount of %q", h.file.Name())
}

func descriptor(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// Open opens a regular file for reading, or a directory for listing. Nothing
// else is opened: a pipe would wait for its writer, a device would act.
func (h *Handle) Open() (*os.File, error) {
	if !h.IsRegular() && !h.IsDir() {
		return nil, ErrKind
	}
	return pathrs.Reopen(h.file, unix.O_RDONLY|unix.O_NONBLOCK)
}

// ErrKind means that a file is of another kind than it must be.
var ErrKind = errors.New("it is not a regular file")

// ReadAll reads a regular file that may not be larger than limit.
func (h *Handle) ReadAll(limit int64) ([]byte, error) {
	if !h.IsRegular() {
		return nil, ErrKind
	}
	f, err := h.Open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("it is larger than %d bytes", limit)
	}
	return text, err
}

// OpenWriter opens a pipe for writing. It fails where the pipe has no reader.
func (h *Handle) OpenWriter() (*os.File, error) {
	if !h.IsPipe() {
		return nil, ErrKind
	}
	return pathrs.Reopen(h.file, unix.O_WRONLY|unix.O_NONBLOCK)
}

// CreateFile opens a regular file of a directory, and makes it where there is
// none. Its name may not be a link.
func (h *Handle) CreateFile(name string, mode fs.FileMode) (*Handle, error) {
	made, err := h.openat(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, syscallMode(mode))
	if err == nil {
		err = made.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	child, err := h.child(name)
	if err != nil {
		return nil, err
	}
	if !child.IsRegular() {
		return nil, errors.Join(ErrKind, child.Close())
	}
	return child, nil
}

func syscallMode(mode fs.FileMode) uint32 { return uint32(mode.Perm()) }

// MakeMountPoint returns the place below a directory where something of the same
// kind as source can be mounted, and makes it where there is none. Links are
// followed as by Resolve.
func (h *Handle) MakeMountPoint(path string, source *Handle) (*Handle, error) {
	if source.IsDir() {
		return h.makeDir(path)
	}
	parent, name := filepath.Split(path)
	dir, err := h.makeDir(parent)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	point, err := dir.child(name)
	if errors.Is(err, fs.ErrNotExist) {
		return dir.CreateFile(name, 0o644)
	}
	if err == nil && point.IsDir() {
		return nil, errors.Join(&fs.PathError{Op: "mount on", Path: path, Err: syscall.EISDIR}, point.Close())
	}
	return point, err
}

func (h *Handle) makeDir(path string) (*Handle, error) {
	if path = filepath.Clean(path); path == "." || path == "/" {
		return h.dup()
	}
	f, err := pathrs.MkdirAllHandle(h.file, path, 0o755)
	if err != nil {
		return nil, err
	}
	return newHandle(f)
}
