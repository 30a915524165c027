// SPDX-License-Identifier: MPL-2.0

package rooted

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// oldKernelEnv makes this program run its tests as on a kernel without openat2.
const oldKernelEnv = "NOMAD_GPU_TEST_OLD_KERNEL"

func TestMain(m *testing.M) {
	if os.Getenv(oldKernelEnv) != "" {
		if err := refuseOpenat2(); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// refuseOpenat2 has the kernel answer openat2 as one that does not know it.
func refuseOpenat2() error {
	const (
		load, equal, give = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
		allow             = 0x7fff0000
		refuse            = 0x00050000 | uint32(unix.ENOSYS)
		setFilter, sync   = 1, 1
	)
	filter := []unix.SockFilter{
		{Code: load, K: 0}, {Code: equal, Jf: 1, K: unix.SYS_OPENAT2}, {Code: give, K: refuse}, {Code: give, K: allow},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, setFilter, sync, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	if _, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH}); !errors.Is(err, unix.ENOSYS) {
		return errors.New("openat2 still works")
	}
	return nil
}

// All of it holds on kernels before 5.6 as well.
func TestWithoutOpenat2(t *testing.T) {
	if os.Getenv(oldKernelEnv) != "" {
		t.Skip("this is it")
	}
	cmd := exec.Command(os.Args[0], "-test.v")
	cmd.Env = append(os.Environ(), oldKernelEnv+"=1")
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	must.StrContains(t, string(out), "--- PASS: TestResolveStaysBelow")
}

// tree makes files, directories (ending in /) and links (name -> target).
func tree(t *testing.T, entries ...string) *Handle {
	t.Helper()
	dir := t.TempDir()
	for _, entry := range entries {
		name, target, isLink := strings.Cut(entry, " -> ")
		path := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		switch {
		case isLink:
			must.NoError(t, os.Symlink(target, path))
		case strings.HasSuffix(name, "/"):
			must.NoError(t, os.MkdirAll(path, 0o755))
		default:
			must.NoError(t, os.WriteFile(path, []byte(name), 0o644))
		}
	}
	h, err := OpenHost(dir)
	must.NoError(t, err)
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func TestResolveStaysBelow(t *testing.T) {
	root := tree(t, "root/dir/file", "root/up -> ../../..", "root/abs -> /dir", "root/out -> /etc/passwd", "root/loop -> loop", "root/proc -> /proc/self/root", "root/twice -> up/dir", "outside")
	below, err := root.Child("root")
	must.NoError(t, err)
	defer below.Close()
	base, err := below.HostPath()
	must.NoError(t, err)
	for path, want := range map[string]string{
		"dir/file": "dir/file", "abs/file": "dir/file", "up/dir/file": "dir/file", "twice/file": "dir/file", "up": ".", "../..": ".", ".": ".", "": ".",
		"/dir": "dir", "dir/../../../dir": "dir", "out": "", "loop": "", "proc": "", "../outside": "", "proc/etc/passwd": "",
	} {
		h, err := below.Resolve(path)
		if want == "" {
			must.Error(t, err, must.Sprint(path))
			continue
		}
		must.NoError(t, err, must.Sprint(path))
		at, err := h.HostPath()
		must.NoError(t, err)
		must.Eq(t, filepath.Join(base, want), at, must.Sprint(path))
		must.NoError(t, h.Close())
	}
}

func TestChildFollowsNoLink(t *testing.T) {
	root := tree(t, "a/b/file", "a/link -> b", "link -> a", "dangling -> nowhere")
	h, err := root.Child("a", "b", "file")
	must.NoError(t, err)
	must.True(t, h.IsRegular())
	must.NoError(t, h.Close())
	for _, names := range [][]string{{"link"}, {"dangling"}, {"link", "b"}, {"a", "link", "file"}} {
		_, err := root.Child(names...)
		must.Error(t, err, must.Sprint(names))
	}
	for _, name := range []string{"", ".", "..", "a/b", "/etc"} {
		_, err := root.Child(name)
		must.ErrorContains(t, err, "is not the name of a file", must.Sprint(name))
	}
}

// Whatever happens to names later, a handle is the file that was opened.
func TestHandleOutlivesItsName(t *testing.T) {
	root := tree(t, "a/file", "b/file")
	h, err := root.Resolve("a/file")
	must.NoError(t, err)
	defer h.Close()
	base, err := root.HostPath()
	must.NoError(t, err)
	must.NoError(t, os.Rename(filepath.Join(base, "a"), filepath.Join(base, "c")))
	must.NoError(t, os.Symlink("b", filepath.Join(base, "a")))
	text, err := h.ReadAll(100)
	must.NoError(t, err)
	must.Eq(t, "a/file", string(text))
}

func TestOnlyFilesAreRead(t *testing.T) {
	root := tree(t, "file", "dir/")
	base, err := root.HostPath()
	must.NoError(t, err)
	must.NoError(t, unix.Mkfifo(filepath.Join(base, "pipe"), 0o600))
	must.NoError(t, unix.Mknod(filepath.Join(base, "socket"), unix.S_IFSOCK|0o600, 0))
	for name, kind := range map[string]func(*Handle) bool{"pipe": (*Handle).IsPipe, "dir": (*Handle).IsDir, "socket": (*Handle).IsSocket} {
		h, err := root.Child(name)
		must.NoError(t, err)
		must.True(t, kind(h), must.Sprint(name))
		must.True(t, h.Mountable())
		_, err = h.ReadAll(100)
		must.ErrorIs(t, err, ErrKind, must.Sprint(name))
		must.NoError(t, h.Close())
	}
	h, err := root.Child("file")
	must.NoError(t, err)
	defer h.Close()
	_, err = h.ReadAll(3)
	must.ErrorContains(t, err, "larger than 3 bytes")
	_, err = h.OpenWriter()
	must.ErrorIs(t, err, ErrKind)
	null, err := OpenHost("/dev/null")
	must.NoError(t, err)
	defer null.Close()
	must.True(t, null.IsNull())
	must.False(t, null.Mountable())
}

func TestCreateFileIsNoLink(t *testing.T) {
	root := tree(t, "there", "link -> there", "dir/")
	for name, ok := range map[string]bool{"there": true, "new": true, "link": false, "dir": false} {
		h, err := root.CreateFile(name, 0o644)
		must.Eq(t, ok, err == nil, must.Sprintf("%s: %v", name, err))
		if err == nil {
			must.NoError(t, h.Close())
		}
	}
}

func TestMountPoints(t *testing.T) {
	root := tree(t, "dir/file", "inner -> dir", "out -> /nowhere", "up -> ..")
	file, err := root.Resolve("dir/file")
	must.NoError(t, err)
	defer file.Close()
	base, err := root.HostPath()
	must.NoError(t, err)
	for _, test := range []struct {
		path   string
		source *Handle
		want   string
	}{
		{"new/deep", root, "new/deep"}, {"inner/x", root, "dir/x"}, {"up/y", root, "y"}, {"out", root, ""},
		{"one", file, "one"}, {"inner/two", file, "dir/two"}, {"new/three", file, "new/three"}, {"dir", file, ""}, {"out", file, ""},
	} {
		point, err := root.MakeMountPoint(test.path, test.source)
		if test.want == "" {
			must.Error(t, err, must.Sprint(test.path))
			continue
		}
		must.NoError(t, err, must.Sprint(test.path))
		must.Eq(t, test.source.IsDir(), point.IsDir())
		at, err := point.HostPath()
		must.NoError(t, err)
		must.Eq(t, filepath.Join(base, test.want), at)
		must.NoError(t, point.Close())
	}
}

func TestPlaces(t *testing.T) {
	root := tree(t, "x -> /dev", "y -> x/pts", "etc/", "a -> b", "b -> a", "deep/er -> ../etc", "data/sub -> /etc", "up -> ../../../etc", "root -> /")
	base, err := root.HostPath()
	must.NoError(t, err)
	places := NewPlaces(base)
	for path, want := range map[string]string{
		"/x": "/dev", "/x/null": "/dev/null", "/y": "/dev/pts", "/deep/er/hosts": "/etc/hosts", "/up/hosts": "/etc/hosts",
		"/data/sub": "/etc", "/new/path": "/new/path", "/root": "/", "/root/dev": "/dev", "/x/../etc": "/etc", "/a": "",
	} {
		at, err := places.Find(path)
		if want == "" {
			must.Error(t, err, must.Sprint(path))
			continue
		}
		must.NoError(t, err)
		must.Eq(t, want, at, must.Sprint(path))
	}
	// What the image has below a mount is not seen.
	places.Cover("/data")
	at, err := places.Find("/data/sub/x")
	must.NoError(t, err)
	must.Eq(t, "/data/sub/x", at)
	// What is mounted there is.
	mounted := tree(t, "sub -> /x/fd", "file", "loop -> loop")
	defer mounted.Close()
	places.Show("/data", mounted)
	at, err = places.Find("/data/sub/7")
	must.NoError(t, err)
	must.Eq(t, "/dev/fd/7", at)
	_, err = places.Find("/data/loop")
	must.Error(t, err)
	places.Show("/data/file", mounted)
	places.Cover("/data/sub")
	at, err = places.Find("/data/sub/7")
	must.NoError(t, err)
	must.Eq(t, "/data/sub/7", at)
}

func TestStage(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	root := tree(t, "dir/file", "dir/link -> /nowhere", "other/")
	dir := filepath.Join(t.TempDir(), "stage")
	stage, err := NewStage(dir)
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, RemoveStage(dir)) })
	source, err := root.Child("dir")
	must.NoError(t, err)
	defer source.Close()
	shown, err := stage.Bind("dir", source, Binding{Propagation: Private})
	must.NoError(t, err)
	_, err = stage.Bind("dir", source, Binding{})
	must.ErrorIs(t, err, fs.ErrExist)
	hosts, err := stage.Write("hosts", []byte("127.0.0.1 localhost\n"))
	must.NoError(t, err)
	must.NoError(t, stage.BindBelow(shown, "etc/hosts", hosts, unix.MS_RDONLY))
	must.ErrorContains(t, stage.BindBelow(shown, "link", hosts, 0), "it is a symbolic link")
	text, err := os.ReadFile(filepath.Join(shown, "etc", "hosts"))
	must.NoError(t, err)
	must.Eq(t, "127.0.0.1 localhost\n", string(text))
	must.ErrorIs(t, os.WriteFile(filepath.Join(shown, "etc", "hosts"), nil, 0), unix.EROFS)
	must.NoError(t, RemoveStage(dir))
	must.NoError(t, RemoveStage(dir))
	mounts, err := os.ReadFile("/proc/self/mounts")
	must.NoError(t, err)
	must.False(t, slices.ContainsFunc(strings.Split(string(mounts), "\n"), func(line string) bool { return strings.Contains(line, dir) }))
	// The host keeps what was mounted on, and nothing of what was on it.
	base, err := root.HostPath()
	must.NoError(t, err)
	text, err = os.ReadFile(filepath.Join(base, "dir", "etc", "hosts"))
	must.NoError(t, err)
	must.Eq(t, "", string(text))
}

// Where the kernel can restrict one mount only, one with others below is refused.
func TestRestrict(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	mountOn := func(path string, flags uintptr) {
		must.NoError(t, os.MkdirAll(path, 0o755))
		must.NoError(t, unix.Mount("t", path, "tmpfs", flags, ""))
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	}
	for name, way := range map[string]func(string, uintptr) error{"all": restrict, "alone": restrictAlone} {
		outer, inner := filepath.Join(dir, name), filepath.Join(dir, name, "inner")
		mountOn(outer, unix.MS_NODEV)
		must.NoError(t, way(outer, unix.MS_NOSUID))
		mountOn(inner, 0)
		err := way(outer, unix.MS_RDONLY)
		if name == "alone" {
			must.ErrorContains(t, err, "\"/inner\"")
			must.NoError(t, unix.Unmount(inner, 0))
			must.NoError(t, way(outer, unix.MS_RDONLY))
		} else {
			must.NoError(t, err)
			has, err := RestrictionsOf(inner)
			must.NoError(t, err)
			must.Eq(t, unix.MS_RDONLY, has)
		}
		has, err := RestrictionsOf(outer)
		must.NoError(t, err)
		must.Eq(t, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, has)
	}
}
