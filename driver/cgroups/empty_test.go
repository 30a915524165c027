// SPDX-License-Identifier: MPL-2.0

package cgroups

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups/cgroupstest"
)

// Whoever empties a control group waits for the end of what is in it, as long as that may
// take, and says what does not end: its GPU must not be given to another.
func TestControlGroupsThatDoNotEmpty(t *testing.T) {
	path, dir := cgroupstest.Fake(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	// The kernel is told to kill one, which there is not, and it stays.
	cgroupstest.Fill(t, dir, map[string]string{"cgroup.procs": "1073741824", "cgroup.kill": ""})
	must.ErrorIs(t, Empty(over, path, Unified()), context.Canceled)
	synctest.Test(t, func(t *testing.T) {
		must.ErrorIs(t, Remove(t.Context(), path, Unified()), ErrStillRuns)
	})
	must.DirExists(t, dir)
	must.NoError(t, os.Remove(filepath.Join(dir, "cgroup.kill")))
	must.NoError(t, os.Mkdir(filepath.Join(dir, "cgroup.kill"), 0o700))
	must.ErrorContains(t, Empty(t.Context(), path, Unified()), "is a directory")

	// A group that is in use is busy, until it is not.
	must.NoError(t, os.RemoveAll(filepath.Join(dir, "cgroup.kill")))
	must.NoError(t, os.Remove(filepath.Join(dir, "cgroup.procs")))
	busy := filepath.Join(dir, "busy")
	must.NoError(t, os.Mkdir(busy, 0o700))
	must.NoError(t, unix.Mount("t", busy, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(busy, unix.MNT_DETACH) })
	err := Remove(over, path, Unified())
	must.ErrorIs(t, err, context.Canceled)
	must.ErrorIs(t, err, unix.EBUSY)
	synctest.Test(t, func(t *testing.T) {
		err := Remove(t.Context(), path, Unified())
		must.ErrorIs(t, err, ErrStillRuns)
		must.ErrorIs(t, err, unix.EBUSY)
	})
	must.NoError(t, unix.Unmount(busy, unix.MNT_DETACH))
	cgroupstest.Fill(t, dir, map[string]string{"left": ""})
	must.ErrorIs(t, Remove(t.Context(), path, Unified()), unix.ENOTEMPTY)
	must.NoError(t, os.Remove(filepath.Join(dir, "left")))
	must.NoError(t, Remove(t.Context(), path, Unified()))
	must.DirNotExists(t, dir)
}

// gone reports whether a process runs no more; a zombie runs no more.
func gone(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(text), ") Z ")
}

// freezeFile is what cgroup v1 thaws processes by.
const freezeFile = "freezer.state"

// Processes of a control group are killed one by one where the kernel cannot do it: those
// that are in it still, and no other whose number was seen there before.
func TestProcessesAreKilledOneByOne(t *testing.T) {
	group := t.TempDir()
	var pids []int
	var inside *exec.Cmd
	for i := range 2 {
		cmd := exec.Command("sleep", "1000")
		must.NoError(t, cmd.Start())
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		pids = append(pids, cmd.Process.Pid)
		if i == 0 {
			inside = cmd
		}
	}
	must.NoError(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0\n"+strconv.Itoa(pids[0])+"\n"+strconv.Itoa(pids[0])+"\n"), 0o600))
	must.NoError(t, os.WriteFile(filepath.Join(group, freezeFile), []byte("FROZEN"), 0o600))
	found, err := Processes([]string{group})
	must.NoError(t, err)
	must.Eq(t, []int{0, pids[0]}, found)
	must.NoError(t, killIn([]string{group}, append([]int{0}, pids...)))
	must.Error(t, inside.Wait())
	must.Eq(t, "signal: killed", inside.ProcessState.String())
	must.False(t, gone(pids[1]), must.Sprint("a process that is not in the group was killed"))
	must.NoError(t, killIn([]string{group}, pids[:1]), must.Sprint("one that is dead already is no failure"))
	first := exec.Command("sleep", "1000")
	must.NoError(t, first.Start())
	must.NoError(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(first.Process.Pid)+"\n"), 0o600))
	must.NoError(t, killIn([]string{group}, []int{first.Process.Pid}))
	must.Error(t, first.Wait())
	thawed, err := os.ReadFile(filepath.Join(group, freezeFile))
	must.NoError(t, err)
	must.Eq(t, "THAWED", string(thawed))

	// The kernel's own means needs no help, and reaches what lies below.
	must.NoError(t, os.WriteFile(filepath.Join(group, "cgroup.kill"), nil, 0o600))
	must.NoError(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pids[1])+"\n"), 0o600))
	must.NoError(t, killIn([]string{group}, pids))
	must.False(t, gone(pids[1]))
	said, err := os.ReadFile(filepath.Join(group, "cgroup.kill"))
	must.NoError(t, err)
	must.Eq(t, "1", string(said))
}

// A control group that cannot be read, written or removed is none that is empty.
func TestControlGroupsThatCannotBeLookedInto(t *testing.T) {
	group := t.TempDir()
	procs := filepath.Join(group, "cgroup.procs")
	must.NoError(t, os.WriteFile(procs, []byte("12\nmany\n"), 0o600))
	_, err := Processes([]string{group})
	must.ErrorContains(t, err, "list processes of control group "+group)
	must.ErrorContains(t, killIn([]string{group}, nil), "list processes of control group")
	must.NoError(t, os.Remove(procs))
	must.NoError(t, os.Mkdir(procs, 0o700))
	_, err = Processes([]string{group})
	must.ErrorContains(t, err, "is a directory")
	for _, name := range []string{freezeFile, "cgroup.kill"} {
		must.NoError(t, os.Mkdir(filepath.Join(group, name), 0o700))
		must.ErrorContains(t, killIn([]string{group}, nil), "is a directory", must.Sprint(name))
	}
	must.ErrorContains(t, removeDirs([]string{group}), "remove control group "+group)
	must.NoError(t, removeDirs([]string{filepath.Join(group, "none")}))
}

// What was held of processes, so that no other of the same number is killed, is let go.
func TestProcessesAreLetGo(t *testing.T) {
	group := t.TempDir()
	cgroupstest.Fill(t, group, map[string]string{"cgroup.procs": ""})
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		must.NoError(t, err)
		return len(entries)
	}
	pids := []int{os.Getpid(), 1}
	must.NoError(t, killIn([]string{group}, pids)) // what is opened once for good is open now
	before := open()
	must.NoError(t, killIn([]string{group}, pids))
	must.Eq(t, before, open())
}
