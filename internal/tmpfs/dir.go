// SPDX-License-Identifier: MPL-2.0

// Package tmpfs gives tests a directory in memory, as /run is on a node: state files
// are synced one by one, which on a busy disk takes tests longer than all else.
package tmpfs

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Dir makes a directory that is gone after the test. Its path is short, since that of a
// socket in it is limited to 107 characters. Without root it lies on the disk.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700"); err == nil {
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	return dir
}
