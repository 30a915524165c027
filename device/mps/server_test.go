// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

// A server that outlives its daemon can no longer be asked or limited, and holds
// memory of the GPU.
func TestServerDoesNotOutliveItsDaemon(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		s := b.wantReady()
		server, err := procs.Find(b.server())
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(server.PID, unix.SIGSTOP); err != nil { // it cannot end by itself
			t.Fatal(err)
		}
		if err := unix.Kill(s.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		b.until("another is ready", func(s Status) bool { return ready(s) && s.Generation == 2 })
		if server.Alive() {
			t.Error("the server of the first daemon still runs")
		}
	})
}

func TestServerThatDiesIsReplaced(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		first := b.wantReady()
		server := b.server()
		if err := unix.Kill(server, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		b.until("it is noticed", reason("server has ended"))
		if s := b.until("another is ready", ready); s.PID != first.PID || s.Generation != 1 || b.server() == server {
			t.Errorf("first %+v, then %+v", first, s)
		}
	})
}

func TestLimitsThatChangeReachTheRunningServer(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.wantReady()
		server := b.server()
		for percent := 50; percent < 55; percent++ {
			other := b.spec()
			other.Percent = percent
			if b.memory {
				other.MemoryMiB = int64(percent) << 10
			}
			b.Want([]Spec{other})
			s := b.until("it is ready again", ready) // and not still, with the limits that it had
			for _, h := range []holder{daemonLimits, serverLimits(server)} {
				if got, want := b.ask(h.getPercent), fmt.Sprintf("%d.0", percent); got != want || s.Generation != 1 {
					t.Errorf("thread percentage of the %s is %q, want %s, status %+v", h.what, got, want, s)
				}
				if !b.memory {
					continue
				}
				if got, want := b.ask(h.getMemory), fmt.Sprintf("%dG", percent); got != want {
					t.Errorf("memory limit of the %s is %q, want %s", h.what, got, want)
				}
			}
		}
	})
}

// A limit of memory must go where a GPU is shared without one later.
func TestMemoryLimitIsTakenAway(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.wantReady()
		shared := b.spec()
		shared.MemoryMiB = 0
		b.Want([]Spec{shared})
		b.until("it is ready again", ready)
		if !b.memory {
			return
		}
		for _, h := range []holder{daemonLimits, serverLimits(b.server())} {
			if got := b.ask(h.getMemory); got != "" && got != "0M" {
				t.Errorf("memory limit of the %s is %q", h.what, got)
			}
		}
	})
}

func TestServerThatKeepsItsLimitsIsNotReady(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.wantReady()
		b.behave("keep")
		other := b.spec()
		other.Percent = 10
		b.Want([]Spec{other})
		b.until("it is noticed", reason("of the server is"))
		b.behave("")
		b.until("it is ready", ready)
	})
}

func TestServerThatInitializesIsNotReady(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.hurry()
		if err := dirsIn(b.root, device).make(); err != nil {
			t.Fatal(err)
		}
		b.behave("initializing")
		b.Want([]Spec{b.spec()})
		if s := b.until("it is noticed", reason("its server is initializing")); s.Server != ServerInitializing {
			t.Errorf("status is %+v", s)
		}
		b.behave("")
		b.until("it is ready", ready)
	})
}

// A server initializes for a moment whenever it starts, which is not a fault.
func TestServerThatHasStartedIsWaitedFor(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		if err := dirsIn(b.root, device).make(); err != nil {
			t.Fatal(err)
		}
		b.behave("initializing")
		b.Want([]Spec{b.spec()})
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for len(b.control(device).running(roleServer)) == 0 {
			<-tick.C
		}
		if s := b.Status(device); s.Settled || s.Server != "" {
			t.Errorf("status is %+v while it starts", s)
		}
		b.behave("")
		b.until("it is ready", ready)
	})
}

func TestServerWithAFaultIsNotReadyAndSaysWhoseItIs(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		if b.branch == "470" || b.branch == "535" {
			t.Skip("this branch does not tell the state of a server")
		}
		first := b.wantReady()
		log := "[2026-11-22 09:00:00.000 Other 77] Client process 4711 encountered a fatal GPU error.\n[2026-11-22 09:00:00.000 Server 77] going on\n"
		if err := os.WriteFile(filepath.Join(first.LogDir, "server.log"), []byte(log), 0o644); err != nil {
			t.Fatal(err)
		}
		b.behave("fault")
		s := b.until("it is noticed", reason("fatal GPU error"))
		if s.Server != ServerFault || s.Culprit != 4711 || !strings.Contains(s.Reason, "(server.log: Client process 4711 encountered a fatal GPU error.)") {
			t.Errorf("status is %+v", s)
		}
		b.behave("")
		if s := b.until("it is ready", ready); s.Generation != 1 || s.PID != first.PID {
			t.Errorf("status is %+v", s)
		}
	})
}

// A fault lasts until the last client has ended, which can be at once.
func TestAFaultIsSeenAsSoonAsTheDriverTellsOfOne(t *testing.T) {
	b := newBench(t)
	b.Close()
	b.answer = time.Hour
	b.start()
	b.wantReady()
	b.behave("fault")
	b.Ask()
	b.until("it is noticed", reason("fatal GPU error"))
}

func TestServerThatDoesNotStartSaysWhy(t *testing.T) {
	b := newBench(t)
	b.hurry()
	d := dirsIn(b.root, device)
	if err := d.make(); err != nil {
		t.Fatal(err)
	}
	b.behave("no-server")
	b.Want([]Spec{b.spec()})
	b.until("it is noticed", reason("its server does not start: no CUDA-capable device is detected"))
	b.behave("")
	b.until("it is ready", ready)
}

// The log of a real server (580, H200): a program that was killed in a kernel, then one with
// an illegal address, each beside others.
func TestCulpritsOfARealLog(t *testing.T) {
	text, err := os.ReadFile("testdata/server-580.log")
	if err != nil {
		t.Fatal(err)
	}
	first := text[:bytes.Index(text, []byte("Destroy server context"))]
	pid, words := lastFault(first, 0)
	if want := "client 3455 ended, perhaps in the middle of its GPU work; then: Client {PID: 2943, Context: 1} encountered a fatal GPU error."; pid != 0 || words != want {
		t.Errorf("of a client that was killed: %d, %q", pid, words)
	}
	second := text[:bytes.LastIndex(text, []byte("Destroy server context"))]
	pid, words = lastFault(second, 0)
	if pid != 7837 || words != "Client {PID: 7837, Context: 1} encountered a fatal GPU error." {
		t.Errorf("of an illegal address: %d, %q", pid, words)
	}
	if pid, words = lastFault(text, 0); pid != 0 || words != "" {
		t.Errorf("once the server has a new context: %d, %q", pid, words)
	}
	if pid, words = lastFault(second, int64(len(second))); pid != 0 || words != "" {
		t.Errorf("of what was there before: %d, %q", pid, words)
	}
}

func TestCulpritOfALogLine(t *testing.T) {
	for line, want := range map[string]int{
		"Client process 4711 encountered a fatal GPU error.": 4711,
		"client 12 had an exception":                         12,
		"A fault of Client: {4711, 2}":                       4711,
		"a fatal GPU error":                                  0,
		"client 99999999999999999999 had a fault":            0,
		"Client {PID: 2854, Context ID: 1} on the error-trigging process 2854 to be torn down": 0,
		"": 0,
	} {
		if got, _ := lastFault([]byte(line+"\n"), 0); got != want {
			t.Errorf("%q accuses %d, not %d", line, got, want)
		}
	}
}
