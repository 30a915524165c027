// SPDX-License-Identifier: MPL-2.0

package rooted

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// openFiles counts what this process has open.
func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must.NoError(t, err)
	return len(entries)
}

func newStage(t *testing.T) *Stage {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := filepath.Join(t.TempDir(), "stage")
	stage, err := NewStage(dir)
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, RemoveStage(dir)) })
	return stage
}

// Nothing stays open, whether it worked or not: a driver that runs for months opens
// files for every start.
func TestNothingStaysOpen(t *testing.T) {
	stage := newStage(t)
	root := tree(t, "dir/file", "link -> dir", "other/")
	base, err := root.HostPath()
	must.NoError(t, err)
	dir, err := root.Child("dir")
	must.NoError(t, err)
	defer dir.Close()
	shown, err := stage.Bind("dir", dir, Binding{Propagation: Private})
	must.NoError(t, err)
	other, err := stage.Write("written", nil)
	must.NoError(t, err)
	open := 0
	for round := range 3 { // what is opened once for all is open after the first
		closing := func(h *Handle, err error) error {
			if err == nil {
				err = h.Close()
			}
			return err
		}
		must.NoError(t, closing(root.Child("dir", "file")))
		must.Error(t, closing(root.Child("link")))
		must.Error(t, closing(root.Child("dir", "none", "file")))
		must.NoError(t, closing(root.Resolve("link/file")))
		must.NoError(t, closing(root.Resolve(".")))
		must.NoError(t, closing(root.CreateFile("new", 0o600)))
		must.ErrorIs(t, closing(root.CreateFile("other", 0o600)), ErrKind)
		must.NoError(t, closing(root.MakeMountPoint("made/deep", root)))
		file, err := root.Resolve("dir/file")
		must.NoError(t, err)
		must.NoError(t, closing(root.MakeMountPoint("made/file", file)))
		must.ErrorIs(t, closing(root.MakeMountPoint("other", file)), unix.EISDIR)
		_, err = file.ReadAll(100)
		must.NoError(t, err)
		must.NoError(t, file.Close())
		must.NoError(t, stage.BindBelow(shown, "below", other, unix.MS_RDONLY))
		must.Error(t, stage.BindBelow(shown, "file/below", shown, 0))
		must.Error(t, stage.BindBelow(shown, "none", filepath.Join(base, "none"), 0))
		must.Error(t, stage.BindBelow(filepath.Join(base, "none"), "x", shown, 0))
		now := openFiles(t)
		if round > 0 {
			must.Eq(t, open, now)
		}
		open = now
	}
}

// What was closed, or never was, gives errors and no files.
func TestNoHandle(t *testing.T) {
	_, err := OpenHost("/no/such/file")
	must.ErrorIs(t, err, fs.ErrNotExist)
	root := tree(t, "file")
	_, err = root.MountID()
	must.NoError(t, err)
	closed := tree(t, "file")
	must.NoError(t, closed.Close())
	for name, use := range map[string]func() error{
		"child":   func() error { _, err := closed.Child("file"); return err },
		"resolve": func() error { _, err := closed.Resolve("file"); return err },
		"itself":  func() error { _, err := closed.Resolve("."); return err },
		"path":    func() error { _, err := closed.HostPath(); return err },
		"mount":   func() error { _, err := closed.MountID(); return err },
		"open":    func() error { _, err := closed.Open(); return err },
		"create":  func() error { _, err := closed.CreateFile("x", 0o600); return err },
		"close":   closed.Close,
	} {
		must.Error(t, use(), must.Sprint(name))
	}
	zero, err := OpenHost("/dev/zero")
	must.NoError(t, err)
	defer zero.Close()
	must.False(t, zero.IsNull())
	must.False(t, zero.Mountable())
}

// How a stage shows what the host mounts: each way of propagation, and alone.
func TestBindings(t *testing.T) {
	stage := newStage(t)
	dir := t.TempDir()
	must.NoError(t, unix.Mount("t", dir, "tmpfs", 0, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	must.NoError(t, unix.Mount("", dir, "", unix.MS_SHARED, ""))
	below := filepath.Join(dir, "below")
	must.NoError(t, os.Mkdir(below, 0o755))
	must.NoError(t, unix.Mount("b", below, "tmpfs", 0, ""))
	must.NoError(t, os.WriteFile(filepath.Join(below, "file"), nil, 0o644))
	source, err := OpenHost(dir)
	must.NoError(t, err)
	defer source.Close()
	for name, row := range map[string]struct {
		binding Binding
		field   string
		below   bool
	}{
		"private": {Binding{Propagation: Private}, "", true},
		"slave":   {Binding{Propagation: Slave}, "master:", true},
		"shared":  {Binding{Propagation: Shared}, "shared:", true},
		"alone":   {Binding{Propagation: Private, Alone: true}, "", false},
		"limited": {Binding{Propagation: Private, Restrictions: unix.MS_RDONLY | unix.MS_NOEXEC}, "", true},
	} {
		path, err := stage.Bind(name, source, row.binding)
		must.NoError(t, err)
		found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
		must.NoError(t, err)
		must.Len(t, 1, found)
		must.True(t, strings.HasPrefix(found[0].Optional, row.field) && (row.field != "" || found[0].Optional == ""), must.Sprintf("%s: %q", name, found[0].Optional))
		_, err = os.Stat(filepath.Join(path, "below", "file"))
		must.Eq(t, row.below, err == nil, must.Sprint(name))
		for _, at := range []string{path, filepath.Join(path, "below")} {
			lacks, err := RestrictionsOf(at)
			must.NoError(t, err)
			if row.below {
				must.Eq(t, row.binding.Restrictions, lacks, must.Sprintf("%s: %s", name, at))
			}
		}
	}
}

func TestTmpfs(t *testing.T) {
	stage := newStage(t)
	path, err := stage.Tmpfs("memory", []string{"size=65536", "mode=0711", "noexec"})
	must.NoError(t, err)
	var is unix.Statfs_t
	must.NoError(t, unix.Statfs(path, &is))
	must.Eq(t, unix.TMPFS_MAGIC, is.Type)
	must.Eq(t, 65536, is.Blocks*uint64(is.Bsize))
	info, err := os.Stat(path)
	must.NoError(t, err)
	must.Eq(t, 0o711, info.Mode().Perm())
	lacks, err := RestrictionsOf(path)
	must.NoError(t, err)
	must.Eq(t, unix.MS_NOEXEC, lacks)
	_, err = stage.Tmpfs("memory", nil)
	must.ErrorIs(t, err, fs.ErrExist)
	_, err = stage.Tmpfs("other", []string{"size=many"})
	must.Error(t, err)
	must.NotEq(t, stage.Name(), stage.Name())
	_, err = stage.Write("memory", nil)
	must.Error(t, err)
	_, err = RestrictionsOf(filepath.Join(stage.Dir(), "none"))
	must.ErrorIs(t, err, fs.ErrNotExist)
	_, err = NewStage(filepath.Join(path, "a\x00b"))
	must.Error(t, err)
}

// What is mounted on a place hides what the image has there, links too.
func TestCoveredPlaces(t *testing.T) {
	root := tree(t, "data/link -> /etc", "other/link -> /etc", "etc/")
	base, err := root.HostPath()
	must.NoError(t, err)
	places := NewPlaces(base)
	places.Cover("/data")
	for name, hidden := range map[string]bool{"data": true, "data/link": true, "other/link": false, "data/link/x": true} {
		_, err := places.Lstat(filepath.Join(base, name))
		must.Eq(t, hidden, err != nil, must.Sprint(name))
	}
	_, err = places.Readlink(filepath.Join(base, "data/link"))
	must.ErrorIs(t, err, fs.ErrNotExist)
	target, err := places.Readlink(filepath.Join(base, "other/link"))
	must.NoError(t, err)
	must.Eq(t, "/etc", target)
}

// What can be bounded is, and what cannot be is left as it was.
func TestLimitInodes(t *testing.T) {
	stage := newStage(t)
	path, err := stage.Tmpfs("memory", []string{"size=1m", "nr_inodes=100"})
	must.NoError(t, err)
	must.NoError(t, os.Mkdir(filepath.Join(path, "below"), 0o755))
	for name, row := range map[string]struct {
		path string
		most int
		want uint64
	}{
		"below it":             {filepath.Join(path, "below"), 50, 100},
		"fewer than there are": {path, 1, 100},
		"on a disk":            {"/proc", 50, 100},
		"it":                   {path, 60, 60},
	} {
		h, err := OpenHost(row.path)
		must.NoError(t, err)
		must.NoError(t, h.LimitInodes(row.most), must.Sprint(name))
		var is unix.Statfs_t
		must.NoError(t, unix.Statfs(path, &is))
		must.Eq(t, row.want, is.Files, must.Sprint(name))
		must.Eq(t, 1<<20, is.Blocks*uint64(is.Bsize))
		must.NoError(t, h.Close())
		must.Error(t, h.LimitInodes(10), must.Sprint("closed"))
		if row.want != 100 {
			back, err := OpenHost(path)
			must.NoError(t, err)
			must.NoError(t, back.LimitInodes(100))
			must.NoError(t, back.Close())
		}
	}
}

// A directory that refuses links leads no program out of it by its name, be it a mount
// point already or not.
func TestRefuseLinks(t *testing.T) {
	stage := newStage(t)
	memory, err := stage.Tmpfs("memory", []string{"noexec"})
	must.NoError(t, err)
	plain := filepath.Join(t.TempDir(), "plain")
	must.NoError(t, os.Mkdir(plain, 0o755))
	for _, dir := range []string{memory, plain} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("it"), 0o644))
		must.NoError(t, os.Symlink("file", filepath.Join(dir, "link")))
		parent, err := OpenHost(filepath.Dir(dir))
		must.NoError(t, err)
		defer parent.Close()
		before, err := RestrictionsOf(dir)
		must.NoError(t, err)
		for range 2 {
			must.NoError(t, parent.RefuseLinks(filepath.Base(dir)))
			for _, name := range []string{"link", "link/"} {
				_, err = os.ReadFile(filepath.Join(dir, name))
				must.ErrorIs(t, err, unix.ELOOP, must.Sprint(name))
			}
			text, err := os.ReadFile(filepath.Join(dir, "file"))
			must.NoError(t, err)
			must.Eq(t, "it", string(text))
		}
		after, err := RestrictionsOf(dir)
		must.NoError(t, err)
		must.Eq(t, before, after)
		must.NoError(t, unix.Unmount(dir, 0))
	}
	_, err = os.ReadFile(filepath.Join(plain, "link"))
	must.NoError(t, err, must.Sprint("it was mounted twice"))
}
