// SPDX-License-Identifier: MPL-2.0

package hostdir

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
)

// withoutMounts runs do as a root that may not mount, as in a container.
func withoutMounts(t *testing.T, do func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	must.NoError(t, unix.Capget(&header, &have[0]))
	less := have
	less[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	must.NoError(t, unix.Capset(&header, &less[0]))
	defer func() { must.NoError(t, unix.Capset(&header, &have[0])) }()
	do()
}

// mountsBelow are the mounts at a path and below it.
func mountsBelow(t *testing.T, path string) []*mountinfo.Info {
	t.Helper()
	found, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	must.NoError(t, err)
	return found
}

// isMemory checks the limits of a file system in memory.
func isMemory(t *testing.T, path string, bytes, files uint64) {
	t.Helper()
	var is unix.Statfs_t
	must.NoError(t, unix.Statfs(path, &is))
	must.Eq(t, unix.TMPFS_MAGIC, is.Type)
	must.Eq(t, bytes, is.Blocks*uint64(is.Bsize))
	must.Eq(t, files, is.Files)
	lacks, err := rooted.RestrictionsOf(path)
	must.NoError(t, err)
	must.Eq(t, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, lacks)
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	must.NoError(t, err)
	return info.Mode()
}

// sharing is a container's memory in a directory of the test's own.
func sharing(t *testing.T) SharedMemory {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	m := SharedMemoryIn(filepath.Join(t.TempDir(), "shm"))
	t.Cleanup(func() { must.NoError(t, m.Remove(t.Context(), "box")) })
	return m
}

// Memory has the size that was asked for, and files by its size, of which small memory has
// some too.
func TestSharedMemory(t *testing.T) {
	m := sharing(t)
	for bytes, files := range map[int64]uint64{1 << 20: 1024, 16 << 20: 1024, 64 << 20: 4096} {
		dir, err := m.Create("box", bytes)
		must.NoError(t, err)
		must.Eq(t, m.Of("box"), dir)
		isMemory(t, dir, uint64(bytes), files)
		must.Eq(t, fs.ModeDir|fs.ModeSticky|0o777, mode(t, dir))
		ids, err := m.IDs(time.Now().Add(time.Hour))
		must.NoError(t, err)
		must.Eq(t, []string{"box"}, ids)
		must.NoError(t, m.Remove(t.Context(), "box"))
		_, err = os.Stat(dir)
		must.ErrorIs(t, err, fs.ErrNotExist)
		must.NoError(t, m.Remove(t.Context(), "box"))
	}
}

// What could not be made leaves nothing, and what could not be removed is told.
func TestSharedMemoryThatFails(t *testing.T) {
	m := sharing(t)
	withoutMounts(t, func() {
		_, err := m.Create("box", 1<<20)
		must.ErrorContains(t, err, "mount shared memory on "+m.Of("box"))
		must.ErrorIs(t, err, unix.EPERM)
	})
	_, err := os.Stat(m.Of("box"))
	must.ErrorIs(t, err, fs.ErrNotExist)
	_, err = m.Create("box", 1<<20)
	must.NoError(t, err)
	withoutMounts(t, func() {
		err := m.Remove(t.Context(), "box")
		must.ErrorContains(t, err, "remove shared memory: unmount ")
		must.ErrorIs(t, err, unix.EPERM)
	})
	must.NoError(t, m.Remove(t.Context(), "box"))
	must.NoError(t, os.MkdirAll(filepath.Join(m.Of("box"), "inner"), 0o700))
	must.ErrorContains(t, m.Remove(t.Context(), "box"), "remove shared memory: ")
	must.NoError(t, os.RemoveAll(m.Of("box")))
	must.NoError(t, os.WriteFile(m.Of("box"), nil, 0o600))
	_, err = m.Create("box", 1<<20)
	must.ErrorContains(t, err, "make shared memory: ")
}

// daemon is a directory as the MPS daemon's: a socket and a log.
type daemon struct {
	*testing.T
	dir   string
	pipes Pipes
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	// Not t.TempDir: its name is too long for sockets.
	dir, err := os.MkdirTemp("", "p")
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, os.RemoveAll(dir)) })
	d := &daemon{T: t, dir: filepath.Join(dir, "daemon"), pipes: PipesIn(filepath.Join(dir, "pipes"))}
	must.NoError(t, os.Mkdir(d.dir, 0o755))
	d.listen()
	must.NoError(t, unix.Mkfifo(d.log(), 0o600))
	t.Cleanup(func() { must.NoError(t, d.pipes.Remove(t.Context(), "box")) })
	return d
}

func (d *daemon) control() string { return filepath.Join(d.dir, "control") }
func (d *daemon) log() string     { return filepath.Join(d.dir, "log") }

// listen replaces the daemon's socket.
func (d *daemon) listen() {
	d.Helper()
	if err := os.Remove(d.control()); err != nil {
		must.ErrorIs(d, err, fs.ErrNotExist)
	}
	listener, err := net.Listen("unix", d.control())
	must.NoError(d, err)
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	d.Cleanup(func() { _ = listener.Close() })
}

func (d *daemon) create() string {
	d.Helper()
	shown, err := d.pipes.Create("box", d.dir)
	must.NoError(d, err)
	return shown
}

// follow reports whether a container is shown another daemon than before.
func (d *daemon) follow() bool {
	d.Helper()
	changed, err := d.pipes.Follow("box", d.dir)
	must.NoError(d, err)
	return changed
}

// shows fails where an entry is not the daemon's.
func (d *daemon) shows(dir, name string) {
	d.Helper()
	here, err := os.Stat(filepath.Join(dir, name))
	must.NoError(d, err)
	there, err := os.Stat(filepath.Join(d.dir, name))
	must.NoError(d, err)
	must.True(d, os.SameFile(here, there), must.Sprint(name))
}

// names are the entries of a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	var all []string
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

// A container finds the daemon's socket and log, and a lock of its own, in a small
// directory; it can change none of the daemon's.
func TestPipes(t *testing.T) {
	d := newDaemon(t)
	must.NoError(t, os.WriteFile(filepath.Join(d.dir, "control_lock"), []byte("daemon"), 0o600))
	must.NoError(t, os.WriteFile(filepath.Join(d.dir, "control_privileged"), nil, 0o600))
	shown := d.create()
	isMemory(t, shown, 64<<10, 64)
	must.Eq(t, 0o755, mode(t, shown).Perm())
	must.Eq(t, []string{"control", "control_lock", "log"}, names(t, shown))
	for _, name := range []string{"control", "log"} {
		d.shows(shown, name)
		must.ErrorIs(t, os.Chmod(filepath.Join(shown, name), 0), unix.EROFS)
	}
	conn, err := net.Dial("unix", filepath.Join(shown, "control"))
	must.NoError(t, err)
	must.NoError(t, conn.Close())
	must.Eq(t, 0o666, mode(t, filepath.Join(shown, "control_lock")))
	text, err := os.ReadFile(filepath.Join(shown, "control_lock"))
	must.NoError(t, err)
	must.Eq(t, "", string(text))

	ids, err := d.pipes.IDs(time.Now().Add(time.Hour))
	must.NoError(t, err)
	must.Eq(t, []string{"box"}, ids)
	must.SliceEmpty(t, mountsBelow(t, d.pipes.next("box")))
	must.NoError(t, d.pipes.Remove(t.Context(), "box"))
	must.SliceEmpty(t, mountsBelow(t, d.pipes.dir))
	must.SliceEmpty(t, names(t, d.pipes.dir))
	must.NoError(t, d.pipes.Remove(t.Context(), "box"))
	_, err = os.Stat(d.control())
	must.NoError(t, err)
}

// A container that runs sees the daemon that there is now, and no mount for one that has
// not changed. It keeps what it sees when the driver removes the directory.
func TestContainersFollowTheirDaemon(t *testing.T) {
	d := newDaemon(t)
	must.False(t, d.follow(), must.Sprint("there is no such container"))
	shown := d.create()
	// What a container sees are mounts of its own, which follow those of the host.
	seen := t.TempDir()
	must.NoError(t, unix.Mount(shown, seen, "", unix.MS_BIND|unix.MS_REC, ""))
	t.Cleanup(func() { must.NoError(t, unmountAlone(seen)) })
	must.NoError(t, unix.Mount("", seen, "", unix.MS_SLAVE|unix.MS_REC, ""))
	mounts := len(mountsBelow(t, shown))
	must.False(t, d.follow())
	must.Eq(t, mounts, len(mountsBelow(t, shown)))

	for range 2 {
		d.listen()
		must.True(t, d.follow())
		must.False(t, d.follow())
		d.shows(seen, "control")
		d.shows(seen, "log")
	}
	must.NoError(t, os.Remove(d.log()))
	must.False(t, d.follow(), must.Sprint("a daemon without a log is the one that there was"))
	must.NoError(t, unix.Mkfifo(d.log(), 0o600))
	must.True(t, d.follow())
	d.shows(seen, "log")
	must.NoError(t, os.Remove(d.control()))
	must.False(t, d.follow(), must.Sprint("a daemon that is away is waited for"))
	must.SliceEmpty(t, mountsBelow(t, d.pipes.next("box")))

	must.NoError(t, d.pipes.Remove(t.Context(), "box"))
	must.SliceEmpty(t, mountsBelow(t, d.pipes.dir))
	d.shows(seen, "log")
}

// An entry that a daemon had not, and has now, appears.
func TestEntriesThatComeLater(t *testing.T) {
	d := newDaemon(t)
	must.NoError(t, os.Remove(d.log()))
	shown := d.create()
	must.Eq(t, []string{"control", "control_lock"}, names(t, shown))
	must.NoError(t, unix.Mkfifo(d.log(), 0o600))
	must.True(t, d.follow())
	must.Eq(t, []string{"control", "control_lock", "log"}, names(t, shown))
	d.shows(shown, "log")
}

// What is no daemon's is not shown, and a directory that cannot be made is taken away.
func TestPipesThatFail(t *testing.T) {
	d := newDaemon(t)
	failed := func(says string) {
		t.Helper()
		_, err := d.pipes.Create("box", d.dir)
		must.ErrorContains(t, err, says)
		must.SliceEmpty(t, mountsBelow(t, d.pipes.next("box")))
		must.NoError(t, d.pipes.Remove(t.Context(), "box"))
		must.SliceEmpty(t, mountsBelow(t, d.pipes.dir))
	}
	withoutMounts(t, func() {
		_, err := d.pipes.Create("box", d.dir)
		must.ErrorContains(t, err, "make MPS directory "+d.pipes.shown("box"))
		must.ErrorIs(t, d.pipes.show("box", d.dir), unix.EPERM)
	})
	for _, entry := range []string{"", "a link", "a directory"} {
		must.NoError(t, os.RemoveAll(d.control()))
		switch entry {
		case "a link":
			must.NoError(t, os.Symlink("/etc/passwd", d.control()))
		case "a directory":
			must.NoError(t, os.Mkdir(d.control(), 0o700))
		}
		failed("show MPS daemon: open " + d.control())
	}
	must.NoError(t, os.RemoveAll(d.control()))
	d.listen()
	must.NoError(t, os.Remove(d.log()))
	must.NoError(t, os.Symlink("/etc/passwd", d.log()))
	shown := d.create()
	must.Eq(t, []string{"control", "control_lock"}, names(t, shown))
	withoutMounts(t, func() {
		err := d.pipes.Remove(t.Context(), "box")
		must.ErrorIs(t, err, unix.EPERM)
		d.listen()
		_, err = d.pipes.Follow("box", d.dir)
		must.ErrorIs(t, err, unix.EPERM)
		err = bindEntry(d.control(), filepath.Join(d.dir, "target"))
		must.ErrorContains(t, err, "mount "+filepath.Join(d.dir, "target"))
	})
	must.ErrorIs(t, bindEntry(d.control(), filepath.Join(d.dir, "none", "target")), fs.ErrNotExist)
	must.NoError(t, d.pipes.Remove(t.Context(), "box"))

	for _, dir := range []string{d.pipes.next("box"), d.pipes.shown("box")} {
		must.NoError(t, os.MkdirAll(filepath.Dir(dir), 0o700))
		must.NoError(t, os.WriteFile(dir, nil, 0o600))
		failed("make MPS directory: ")
	}
}

// Directories that cannot be looked into are not taken for a daemon that is as it was.
func TestDaemonsThatCannotBeLookedAt(t *testing.T) {
	d := newDaemon(t)
	file := filepath.Join(d.dir, "file")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	shown := d.pipes.shown("box")
	must.NoError(t, os.MkdirAll(shown, 0o700))
	_, err := d.pipes.Follow("box", file)
	must.ErrorIs(t, err, unix.ENOTDIR)
	must.NoError(t, os.Remove(shown))
	must.NoError(t, os.WriteFile(shown, nil, 0o600))
	_, err = d.pipes.Follow("box", d.dir)
	must.ErrorIs(t, err, unix.ENOTDIR)
	must.ErrorContains(t, unmount(strings.Repeat("x", 300)), "unmount xxx")
	must.ErrorIs(t, unmountAlone(strings.Repeat("x", 300)), unix.ENAMETOOLONG)
}

// A driver that died while it showed another daemon leaves nothing that stays, and a
// container whose directory is gone is not shown one.
func TestPipesThatWereLeftHalfMade(t *testing.T) {
	d := newDaemon(t)
	shown, next := d.create(), d.pipes.next("box")
	must.NoError(t, unix.Mount("mps", next, "tmpfs", 0, ""))
	must.NoError(t, d.pipes.Remove(t.Context(), "box"))
	must.SliceEmpty(t, mountsBelow(t, d.pipes.dir))
	must.SliceEmpty(t, names(t, d.pipes.dir))

	must.NoError(t, os.MkdirAll(next, 0o700))
	must.ErrorContains(t, d.pipes.show("box", d.dir), "show MPS daemon: ")
	must.SliceEmpty(t, mountsBelow(t, next))
	_, err := os.Stat(shown)
	must.ErrorIs(t, err, fs.ErrNotExist)
}

// All that is mounted on a directory, one over the other, is taken away.
func TestUnmountAlone(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	for range 3 {
		must.NoError(t, unix.Mount("t", dir, "tmpfs", 0, ""))
	}
	must.NoError(t, unmountAlone(dir))
	must.SliceEmpty(t, mountsBelow(t, dir))
	must.NoError(t, unmountAlone(dir))
	must.NoError(t, unmountAlone(filepath.Join(dir, "none")))
	must.NoError(t, unmount(filepath.Join(dir, "none")))
	must.NoError(t, unmount(dir))
}

// Nothing stays open, whether it worked or not: a driver that runs for months looks at the
// daemons of its tasks every few seconds.
func TestNoEntryStaysOpen(t *testing.T) {
	d := newDaemon(t)
	openFiles := func() int { return len(names(t, "/proc/self/fd")) }
	d.create()
	link := filepath.Join(d.dir, "link")
	must.NoError(t, os.Symlink(d.log(), link))
	must.False(t, d.follow())
	open := openFiles()
	must.NoError(t, os.Remove(d.log()))
	must.NoError(t, unix.Mkfifo(d.log(), 0o600))
	must.True(t, d.follow())
	must.False(t, d.follow())
	_, _, err := openEntry(link)
	must.ErrorIs(t, err, fs.ErrNotExist)
	_, _, err = openEntry(d.dir)
	must.ErrorIs(t, err, fs.ErrNotExist)
	must.Eq(t, open, openFiles())
}
