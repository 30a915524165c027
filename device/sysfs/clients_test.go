// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

const handleOf4GiB = "pos:\t0\ndrm-driver:\txe\ndrm-client-id:\t1\ndrm-pdev:\t0000:03:00.0\ndrm-resident-vram0:\t4194304 KiB\n"

// handles makes a process with open files, of which the last is a handle of a device.
func handles(t *testing.T, root string, pid, others int, namespace, path string) {
	t.Helper()
	proc := filepath.Join(root, "proc", fmt.Sprint(pid))
	for _, dir := range []string{"fd", "fdinfo", "ns"} {
		if err := os.MkdirAll(filepath.Join(proc, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(proc, name)); err != nil {
			t.Fatal(err)
		}
	}
	link(namespace, "ns/mnt")
	for n := range others {
		link("socket:[1]", fmt.Sprintf("fd/%d", n))
	}
	link(path, fmt.Sprintf("fd/%d", others))
	if err := os.WriteFile(filepath.Join(proc, "fdinfo", fmt.Sprint(others)), []byte(handleOf4GiB), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Whatever a task does with the names of its device nodes and its open files, what it has
// of a device is counted.
func TestHandlesThatAreHidden(t *testing.T) {
	for what, task := range map[string]struct {
		others int
		path   string
	}{
		"as it was given":                     {3, "/dev/dri/renderD128"},
		"a node that was moved":               {3, "/dev/elsewhere/renderD128"},
		"a node that was made":                {3, "/tmp/x"},
		"a node that was removed":             {3, "/tmp/x (deleted)"},
		"after more files than a list has":    {9000, "/dev/dri/renderD128"},
		"a node that was moved, after others": {9000, "/dev/x"},
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			handles(t, root, 1, 1, "mnt:[1]", "/dev/null")
			if err := os.Symlink("1", filepath.Join(root, "proc/self")); err != nil {
				t.Fatal(err)
			}
			handles(t, root, 77, task.others, "mnt:[2]", task.path)
			c := Clients{Tree: Tree{Root: root}, Now: time.Now}
			found := c.Of("0000:03:00.0")
			if len(found) != 1 || found[0].PID != 77 || found[0].MemoryBytes != 4<<30 {
				t.Errorf("got %+v", found)
			}
		})
	}
}

// A scan that takes long is not made again and again.
func TestScansLeaveTheMachineTime(t *testing.T) {
	now := time.Unix(1e9, 0)
	c := Clients{Tree: Tree{Root: t.TempDir()}, Now: func() time.Time { now = now.Add(10 * time.Second); return now }}
	c.Of("") // takes ten seconds by this clock
	if at := c.at; c.Of("") != nil || c.at != at {
		t.Error("another scan was made at once")
	}
	now = now.Add(100 * time.Second)
	if at := c.at; c.Of("") != nil || c.at == at {
		t.Error("no other scan was made")
	}
}
