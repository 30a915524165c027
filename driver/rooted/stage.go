// SPDX-License-Identifier: MPL-2.0

package rooted

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Stage is a small file system in memory that shows files of tenants under names
// of the driver's own, and holds the files that the driver writes for one
// container. It is there while the container is made; what the container has
// mounted by then it keeps.
type Stage struct {
	dir    string
	serial int
}

// What a Stage may take: a few small files and the names of mounts. A container
// can write to one of the files, /etc/hosts.
const stageLimits = "mode=0700,size=1m,nr_inodes=512"

// NewStage mounts a stage on a directory that does not exist yet.
func NewStage(dir string) (*Stage, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make a stage: %w", err)
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("stage", dir, "tmpfs", flags, stageLimits); err != nil {
		return nil, errors.Join(fmt.Errorf("make a stage on %s: %w", dir, err), os.Remove(dir))
	}
	return &Stage{dir: dir}, nil
}

// Dir is where the stage is.
func (s *Stage) Dir() string { return s.dir }

// Name returns one that is not taken yet.
func (s *Stage) Name() string {
	s.serial++
	return fmt.Sprintf("other%d", s.serial)
}

// Write makes a file of the driver's own, and returns its path.
func (s *Stage) Write(name string, content []byte) (string, error) {
	path := filepath.Join(s.dir, name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return "", fmt.Errorf("write %s: %w", name, err)
	}
	return path, os.Chmod(path, 0o644) // whatever the umask is
}

// Binding says how a file is shown in a stage.
type Binding struct {
	// Alone leaves out mounts below a directory.
	Alone bool
	// Propagation is what mounts the stage and the host tell each other: Private,
	// Slave or Shared.
	Propagation Propagation
	// Restrictions are flags of mount(2), such as unix.MS_RDONLY, for the file and all
	// that is mounted below it by now.
	Restrictions uintptr
}

// Propagation of a mount.
type Propagation uintptr

const (
	Private Propagation = unix.MS_PRIVATE
	Slave   Propagation = unix.MS_SLAVE
	Shared  Propagation = unix.MS_SHARED
)

// Bind shows a file under a name, and returns its path.
func (s *Stage) Bind(name string, h *Handle, b Binding) (string, error) {
	path := filepath.Join(s.dir, name)
	if err := makeLike(path, h); err != nil {
		return "", fmt.Errorf("show %s: %w", name, err)
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REC)
	if b.Alone {
		flags = unix.MS_BIND
	}
	err := h.control(func(fd int) error { return unix.Mount(descriptor(fd), path, "", flags, "") })
	if err == nil && b.Propagation != Shared {
		// A copy of a mount of the host is its peer, and a mount on one
		// appears on the other.
		err = unix.Mount("", path, "", uintptr(b.Propagation)|unix.MS_REC, "")
	}
	if err == nil {
		err = restrict(path, b.Restrictions)
	}
	if err != nil {
		return "", fmt.Errorf("show %s: %w", name, err)
	}
	return path, nil
}

func makeLike(path string, h *Handle) error {
	if h.IsDir() {
		return os.Mkdir(path, 0o700)
	}
	return os.WriteFile(path, nil, 0o600)
}

// Tmpfs mounts a new file system in memory under a name, and returns its path.
func (s *Stage) Tmpfs(name string, options []string) (string, error) {
	path := filepath.Join(s.dir, name)
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", fmt.Errorf("show %s: %w", name, err)
	}
	if err := (&mount.Mount{Type: "tmpfs", Source: "tmpfs", Options: options}).Mount(path); err != nil {
		return "", fmt.Errorf("show %s: %w", name, err)
	}
	return path, nil
}

// BindBelow mounts the content of one path of the stage into a directory
// that is shown under another, at a path below that, which a tenant may name.
// flags, such as unix.MS_RDONLY, are added to the mount, and not to mounts made below it
// before.
func (s *Stage) BindBelow(dir, path, source string, flags uintptr) error {
	where, err := OpenHost(dir)
	if err != nil {
		return err
	}
	defer where.Close()
	what, err := OpenHost(source)
	if err != nil {
		return err
	}
	defer what.Close()
	point, err := where.MakeMountPoint(path, what)
	if err != nil {
		return fmt.Errorf("make mount point %q: %w", path, err)
	}
	defer point.Close()
	// A mount gets its flags by its path, so it gets them here first.
	restricted := filepath.Join(s.dir, s.Name())
	if err := makeLike(restricted, what); err != nil {
		return fmt.Errorf("mount on %q: %w", path, err)
	}
	const flagsOfCopies = unix.MS_BIND | unix.MS_REC
	if err := unix.Mount(source, restricted, "", flagsOfCopies, ""); err != nil {
		return fmt.Errorf("mount on %q: %w", path, err)
	}
	if err := restrictOne(restricted, flags); err != nil {
		return fmt.Errorf("mount on %q: %w", path, err)
	}
	err = point.control(func(fd int) error { return unix.Mount(restricted, descriptor(fd), "", flagsOfCopies, "") })
	if err != nil {
		return fmt.Errorf("mount on %q: %w", path, err)
	}
	return nil
}

// restrictable are the flags of mounts that take something away. Mount(2), statfs(2)
// and mount_setattr(2) have the same bits for them.
const restrictable = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// restrict takes more away from a mount of the driver's own, and from all that is
// mounted below it: flags are such as unix.MS_RDONLY, and what a mount lacks already it
// lacks still.
func restrict(path string, flags uintptr) error {
	if flags == 0 {
		return nil
	}
	attributes := unix.MountAttr{Attr_set: uint64(flags & restrictable)}
	err := unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_RECURSIVE, &attributes)
	if errors.Is(err, unix.ENOSYS) {
		return restrictAlone(path, flags)
	}
	return err
}

// restrictAlone is restrict for kernels before 5.12, which can change one mount at a
// time: they refuse where something is mounted below.
func restrictAlone(path string, flags uintptr) error {
	below, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err != nil {
		return err
	}
	for _, m := range below {
		if m.Mountpoint != path {
			return fmt.Errorf("something is mounted below, at %q, and this kernel cannot restrict that as well (mount it alone, with the option bind, or use Linux 5.12)", strings.TrimPrefix(m.Mountpoint, path))
		}
	}
	return restrictOne(path, flags)
}

// restrictOne takes more away from one mount, and leaves mounts below it alone.
func restrictOne(path string, flags uintptr) error {
	have, err := RestrictionsOf(path)
	if err != nil || flags&^have == 0 {
		return err
	}
	return unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|flags|have, "")
}

// RestrictionsOf returns what a mount lacks, as flags of mount(2).
func RestrictionsOf(path string) (uintptr, error) {
	var have unix.Statfs_t
	if err := unix.Statfs(path, &have); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return uintptr(have.Flags) & restrictable, nil
}

// RemoveStage takes a stage away, as far as there is one.
func RemoveStage(dir string) error {
	// Nothing of this may reach the mounts of the host that were copied here.
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil && !absent(err) {
		return &fs.PathError{Op: "make private", Path: dir, Err: err}
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !absent(err) {
		return &fs.PathError{Op: "unmount", Path: dir, Err: err}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// absent reports whether nothing is mounted there.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) }
