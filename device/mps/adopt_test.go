// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

func TestDaemonIsAdoptedAfterRestart(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		first := b.wantReady()
		b.Close()
		if !exists(first.PID) {
			t.Fatal("the daemon ended with the supervisor")
		}
		b.start()
		b.Want([]Spec{b.spec()})
		second := b.until("it is adopted", ready)
		if second.PID != first.PID || second.Generation != first.Generation {
			t.Errorf("got %+v, want the daemon of %+v", second, first)
		}
		b.oneOfEach()
	})
}

// Nomad stops and starts plugins at any moment. A daemon must not pay for it.
func TestDaemonSurvivesASupervisorThatIsStoppedAtOnce(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		first := b.wantReady()
		for range 20 {
			b.Close()
			b.start()
			b.Want([]Spec{b.spec()})
		}
		b.Close()
		b.start()
		b.Want([]Spec{b.spec()})
		if s := b.until("it is adopted", ready); s.PID != first.PID || s.Generation != first.Generation {
			t.Errorf("got %+v, want the daemon of %+v", s, first)
		}
	})
}

// exists reports whether any process has a number.
func exists(pid int) bool {
	_, err := procs.Find(pid)
	return err == nil
}

// What lies where the daemon's socket is to be need not be a daemon's.
func TestWhatLiesInTheDaemonsPlaceIsNoDaemon(t *testing.T) {
	for name, put := range map[string]func(t *testing.T, d dirs){
		"a FIFO as PID file": func(t *testing.T, d dirs) {
			if err := unix.Mkfifo(filepath.Join(d.own, "nvidia-cuda-mps-control.pid"), 0o666); err != nil {
				t.Fatal(err)
			}
		},
		"process 1 in the PID file": func(t *testing.T, d dirs) {
			if err := os.WriteFile(filepath.Join(d.own, "nvidia-cuda-mps-control.pid"), []byte("1\n"), 0o666); err != nil {
				t.Fatal(err)
			}
		},
		"a FIFO as socket": func(t *testing.T, d dirs) {
			if err := unix.Mkfifo(d.socket(), 0o666); err != nil {
				t.Fatal(err)
			}
		},
		"a file as socket": func(t *testing.T, d dirs) {
			if err := os.WriteFile(d.socket(), nil, 0o666); err != nil {
				t.Fatal(err)
			}
		},
		"another program's socket": func(t *testing.T, d dirs) { listenAt(t, "unixpacket", d.socket()) },
		"a socket of another type": func(t *testing.T, d dirs) { listenAt(t, "unix", d.socket()) },
		"a link in a circle": func(t *testing.T, d dirs) {
			if err := os.Symlink("control", d.socket()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			d := dirsIn(b.root, device)
			if err := d.make(); err != nil {
				t.Fatal(err)
			}
			put(t, d)
			b.Want([]Spec{b.spec()})
			if s := b.until("a daemon is ready", ready); s.PID == os.Getpid() || s.PID == 1 {
				t.Errorf("adopted process %d, which is no daemon", s.PID)
			}
			b.oneOfEach()
		})
	}
}

func listenAt(t *testing.T, network, path string) {
	t.Helper()
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close() })
}

// The PID file is the tasks' to write: a daemon that lives does not depend on it.
func TestDaemonIsAdoptedWhateverItsPIDFileSays(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		first := b.wantReady()
		b.Close()
		path := filepath.Join(first.ControlDir, "nvidia-cuda-mps-control.pid")
		_ = os.Remove(path)
		if err := unix.Mkfifo(path, 0o666); err != nil {
			t.Fatal(err)
		}
		b.start()
		b.Want([]Spec{b.spec()})
		if s := b.until("it is adopted", ready); s.PID != first.PID {
			t.Errorf("got %+v, want the daemon of %+v", s, first)
		}
	})
}

// A daemon whose socket is gone may have tasks.
func TestDaemonWithoutASocketIsReplacedOnlyWhenNoTaskIsThere(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		first := b.wantReady()
		for _, name := range []string{"control", "control_privileged"} {
			if err := os.Remove(filepath.Join(first.ControlDir, name)); err != nil {
				t.Fatal(err)
			}
		}
		now := b.until("it is noticed", reason("was removed"))
		if !exists(first.PID) || !strings.Contains(now.Action, "when no task is on the device") {
			t.Errorf("status is %+v", now)
		}
		empty := b.spec()
		empty.EmptyAt = time.Now()
		b.Want([]Spec{empty})
		if s := b.until("another is ready", ready); s.PID == first.PID || s.Generation != 2 {
			t.Errorf("first %+v, then %+v", first, s)
		}
		b.oneOfEach()
	})
}
