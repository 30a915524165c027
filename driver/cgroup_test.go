package driver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestOnlyAContainersCgroupIsADirectory(t *testing.T) {
	root := t.TempDir()
	for _, hierarchy := range []string{"", "memory", "pids"} {
		must.NoError(t, os.MkdirAll(filepath.Join(root, hierarchy, "nomad-gpu", "x"), 0o755))
	}
	must.Len(t, 1, dirsBelow(root, "/nomad-gpu/x", true))
	must.Len(t, 2, dirsBelow(root, "/nomad-gpu/x", false))
	for _, path := range []string{"", "/", "//", "/.", "/..", "/nomad-gpu", "/nomad-gpu/", "/nomad-gpu/.", "/nomad-gpu/x/..", "/*/*", "/nomad-gpu/*", "/nomad-gpu/?", "/nomad-gpu/[x]"} {
		must.SliceEmpty(t, dirsBelow(root, path, true), must.Sprint(path))
		must.SliceEmpty(t, dirsBelow(root, path, false), must.Sprint(path))
	}
}

func TestCgroupOfALeaseIsItsContainers(t *testing.T) {
	for path, want := range map[string]string{"/ns/a": "/ns/a", "/ns/a.scope": "/ns/a.scope", "/ns/b": "", "/system.slice": "", "": ""} {
		must.Eq(t, want, cgroupOf(gpu.Lease{Container: "a", Cgroup: path}), must.Sprint(path))
	}
}
