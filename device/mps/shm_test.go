// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func (b *bench) leave(s Status, name string, bytes int) error {
	return os.WriteFile(filepath.Join(s.ShmDir, name), make([]byte, bytes), 0o600)
}

func mountsOn(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), " "+path+" ")
}

func TestDaemonHasItsOwnSharedMemory(t *testing.T) {
	b := newBench(t)
	s := b.wantReady()
	if err := os.WriteFile(filepath.Join(s.ShmDir, "seen"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inside := fmt.Sprintf("/proc/%d/root/dev/shm/seen", s.PID)
	if _, err := os.Stat(inside); err != nil {
		t.Errorf("the daemon's /dev/shm is not its directory: %v", err)
	}
	if _, err := os.Stat("/dev/shm/seen"); err == nil {
		t.Error("the host's /dev/shm was replaced")
	}
}

// The root of a task locks others out of what all share.
func TestTheModeOfSharedMemoryIsRestoredAtOnce(t *testing.T) {
	b := newBench(t)
	b.Close()
	b.answer = time.Hour // no question restores it
	b.start()
	s := b.wantReady()
	for _, change := range []func() error{
		func() error { return os.Chmod(s.ShmDir, 0o700) },
		func() error { return os.Chmod(s.ShmDir, 0o777) }, // no sticky bit: others' files can be removed
		func() error { return os.Chown(s.ShmDir, 65534, 65534) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		var now unix.Stat_t
		for limit := time.Now().Add(time.Minute); now.Mode&0o7777 != 0o1777 || now.Uid != 0 || now.Gid != 0; {
			if err := unix.Stat(s.ShmDir, &now); err != nil || time.Now().After(limit) {
				t.Fatalf("the mode stays %o, owner %d: %v", now.Mode, now.Uid, err)
			}
		}
	}
}

// A task must not fill the host's memory through what it shares.
func TestSharedMemoryIsLimited(t *testing.T) {
	b := newBench(t)
	first := b.wantReady()
	if err := b.leave(first, "large", 17<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("17 MiB in 16 MiB: %v", err)
	}
	b.Close() // as with a plugin that is killed: nothing is unmounted
	b.start()
	b.Want([]Spec{b.spec()})
	if second := b.until("it is adopted", ready); second.PID != first.PID {
		t.Error("the daemon was replaced")
	}
	if n := mountsOn(t, first.ShmDir); n != 1 {
		t.Errorf("%d mounts after a restart", n)
	}
	b.Want(nil)
	b.Close()
	if n := mountsOn(t, first.ShmDir); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
	if _, err := os.Stat(first.ShmDir); err == nil {
		t.Error("the directory is left")
	}
	b.start()
}

func TestDaemonWithAnotherSharedMemoryIsNotReady(t *testing.T) {
	b := newBench(t)
	s := b.wantReady()
	b.Close()
	if err := unix.Unmount(s.ShmDir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.Want([]Spec{b.spec()})
	if s := b.until("it is noticed", func(s Status) bool { return s.Settled }); s.Ready || !strings.Contains(s.Reason, "is not the shared memory of process") {
		t.Errorf("status is %+v", s)
	}
}

func TestSharedMemoryThatCannotBeMountedIsAFault(t *testing.T) {
	c := control{dirs: dirsIn(t.TempDir(), device), shmMiB: 16}
	if err := c.mountShm(false); err == nil || !strings.Contains(err.Error(), "mount shared memory of 16 MiB on "+c.dirs.shm) {
		t.Errorf("got %v", err)
	}
}

func TestLeftoversOfTasksAreRemoved(t *testing.T) {
	d := dirsIn(t.TempDir(), device)
	if err := d.make(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"own", "cuda.shm.0.1", "left"} {
		if err := os.WriteFile(filepath.Join(d.shm, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(d.shm, "tree", "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		empty time.Time
		want  string
	}{
		{"what is younger may be a new task's", time.Now().Add(-time.Hour), "cuda.shm.0.1 left own tree"},
		{"the daemon's own stay", time.Now().Add(time.Hour), "cuda.shm.0.1 own"},
	} {
		if err := d.sweepShm([]string{"own"}, tc.empty); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(d.shmNames(), " "); got != tc.want {
			t.Errorf("%s: %s are left", tc.name, got)
		}
	}
}

func TestDaemonSweepsWhenNoTaskIsThere(t *testing.T) {
	b := newBench(t)
	s := b.wantReady()
	if err := b.leave(s, "left", 1); err != nil {
		t.Fatal(err)
	}
	empty := b.spec()
	empty.EmptyAt = time.Now().Add(time.Hour)
	b.Want([]Spec{empty})
	for deadline := time.Now().Add(time.Minute); len(dirsIn(b.root, device).shmNames()) > 0; {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-b.changed:
		}
		if time.Now().After(deadline) {
			t.Fatal("the file is still there")
		}
	}
	if now := b.Status(device); !now.Ready || now.Generation != s.Generation {
		t.Errorf("status is %+v", now)
	}
}

func TestDaemonSharesTheHostsSharedMemory(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, newest, true)
	s := b.wantReady()
	if its := fmt.Sprintf("/proc/%d/root/dev/shm", s.PID); !sameFile(its, "/dev/shm") || s.ShmDir != "/dev/shm" {
		t.Errorf("%s is another than the host's, shared memory is %s", its, s.ShmDir)
	}
}
