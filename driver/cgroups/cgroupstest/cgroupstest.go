// SPDX-License-Identifier: MPL-2.0

// Package cgroupstest shows tests a control group whose files are theirs to write.
package cgroupstest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// root is where the kernel shows control groups.
const root = "/sys/fs/cgroup"

// Fake is a control group whose files are a test's to write: a directory of its own,
// shown where the kernel's groups are. It returns the group's path, and the directory.
func Fake(t *testing.T) (path, dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounts need root")
	}
	parent := root
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		parent = filepath.Join(root, "pids") // cgroup v1
	}
	at, err := os.MkdirTemp(parent, "nomad-gpu-test-")
	if err != nil {
		t.Skip("control groups cannot be made here: ", err)
	}
	t.Cleanup(func() { must.NoError(t, unix.Rmdir(at)) })
	top := t.TempDir()
	must.NoError(t, unix.Mount(top, at, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
	dir = filepath.Join(top, "box")
	must.NoError(t, os.Mkdir(dir, 0o755))
	return "/" + filepath.Base(at) + "/box", dir
}

// Fill writes the files of a control group.
func Fill(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}
