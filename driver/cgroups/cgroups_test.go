// SPDX-License-Identifier: MPL-2.0

package cgroups

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestOnlyAContainersCgroupIsADirectory(t *testing.T) {
	root := t.TempDir()
	for _, hierarchy := range []string{"", "memory", "pids"} {
		must.NoError(t, os.MkdirAll(filepath.Join(root, hierarchy, "nomad-gpu", "x"), 0o755))
	}
	below := func(root, path string, unified bool) []string {
		t.Helper()
		found, err := dirsBelow(root, path, unified)
		must.NoError(t, err)
		return found
	}
	must.Len(t, 1, below(root, "/nomad-gpu/x", true))
	must.Len(t, 2, below(root, "/nomad-gpu/x", false))
	must.NoError(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))
	must.Len(t, 2, below(root, "/nomad-gpu/x", false))
	must.SliceEmpty(t, below(root+"/none", "/nomad-gpu/x", false))
	_, err := dirsBelow(root+"/file", "/nomad-gpu/x", false)
	must.ErrorContains(t, err, "look for control group: ")
	for _, unified := range []bool{true, false} {
		_, err = dirsBelow(root, "/"+strings.Repeat("x", 300)+"/x", unified)
		must.ErrorIs(t, err, unix.ENAMETOOLONG)
	}
	for _, path := range []string{"", "/", "//", "/.", "/..", "/nomad-gpu", "/nomad-gpu/", "/nomad-gpu/.", "/nomad-gpu/x/..", "/*/*", "/nomad-gpu/*", "/nomad-gpu/?", "/nomad-gpu/[x]"} {
		must.SliceEmpty(t, below(root, path, true), must.Sprint(path))
		must.SliceEmpty(t, below(root, path, false), must.Sprint(path))
	}
}

func TestCgroupOfALeaseIsItsContainers(t *testing.T) {
	for path, want := range map[string]string{"/ns/a": "/ns/a", "/ns/a.scope": "/ns/a.scope", "/ns/b": "", "/system.slice": "", "": ""} {
		must.Eq(t, want, Of(gpu.Lease{Container: "a", Cgroup: path}), must.Sprint(path))
	}
}
