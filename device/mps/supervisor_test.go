// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDaemonIsReadyWithItsLimits(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		s := b.wantReady()
		if s.Generation != 1 || s.PID == 0 || s.Reason != "" || s.Server != ServerActive || s.MultiUser != b.multiUser || s.Priorities != b.memory {
			t.Errorf("status is %+v", s)
		}
		for _, holder := range []holder{daemonLimits, serverLimits(b.server())} {
			if b.memory {
				if got := b.ask(holder.getMemory); got != "79G" {
					t.Errorf("memory limit of the %s is %q", holder.what, got)
				}
			}
			if got := b.ask(holder.getPercent); got != "80.0" {
				t.Errorf("thread percentage of the %s is %q", holder.what, got)
			}
		}
		for path, want := range map[string]os.FileMode{s.PipeDir: 0o755, s.ControlDir: 0o755, filepath.Dir(s.ControlDir): 0o700, s.ShmDir: 0o777, b.dir: 0o711} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s has mode %v (%v), want %v", path, info.Mode().Perm(), err, want)
			}
		}
	})
}

// Daemons print limits rounded down to GiB; no size of slices must depend on that.
func TestAnySizeOfSlicesIsReady(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		if !b.memory {
			t.Skip("this branch has no memory limits")
		}
		for _, mib := range []int64{1, 512, 1023, 1024, 1500, 14848, 24564, 80896, 81559, 183359} {
			s := b.spec()
			s.MemoryMiB = mib
			b.Want([]Spec{s})
			if now := b.until("it is ready", ready); now.Generation != 1 {
				t.Errorf("%d MiB: status is %+v", mib, now)
			}
		}
	})
}

func TestSlicesAreRefusedWithoutMemoryLimits(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		if b.memory {
			t.Skip("this branch has memory limits")
		}
		s := b.spec()
		s.MemoryMiB = 8192
		b.Want([]Spec{s})
		now := b.until("it is refused", reason("has no memory limits"))
		if !strings.Contains(now.Action, "branch 535 or newer") || !now.Settled {
			t.Errorf("status is %+v", now)
		}
		if left := b.control(device).running(roleDaemon); len(left) > 1 {
			t.Errorf("%d daemons run", len(left))
		}
		b.Want([]Spec{b.spec()}) // shared instead
		b.until("it is ready", ready)
	})
}

func TestDaemonThatDiesIsReplaced(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		first := b.wantReady()
		if err := unix.Kill(first.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		down := b.until("its death is noticed", func(s Status) bool { return notReady(s) || s.Generation > 1 })
		if notReady(down) && !strings.Contains(down.Reason, "died") {
			t.Errorf("reason is %q", down.Reason)
		}
		second := b.until("another is ready", func(s Status) bool { return ready(s) && s.Generation == 2 })
		if second.PID == first.PID || second.LastEnd != "it died" || second.StartedAt.IsZero() || first.LastEnd != "" {
			t.Errorf("first %+v, second %+v", first, second)
		}
		b.oneOfEach()
	})
}

// oneOfEach fails the test unless one daemon, one server and one gate run. A process that
// was forked has its parent's arguments until it executes its own program, so a daemon that
// starts something is seen twice for a moment: oneOfEach waits.
func (b *bench) oneOfEach() {
	b.t.Helper()
	c := b.control(device)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		daemons, servers, gates := c.running(roleDaemon), c.running(roleServer), c.running(roleGate)
		if len(daemons) == 1 && len(servers) == 1 && len(gates) == 1 {
			return
		}
		if time.Now().After(deadline) {
			b.t.Errorf("daemons %v, servers %v and gates %v run", daemons, servers, gates)
			return
		}
	}
}

func TestDaemonThatIsNotWantedEnds(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		first := b.wantReady()
		server := b.server()
		b.Close()
		b.start()
		b.Want(nil) // the configuration has changed while the plugin was away
		b.Close()
		b.untilGone(first.PID) // a process that was killed is seen until it is reaped
		b.untilGone(server)
		b.start()
	})
}

// Every task of a GPU depends on its daemon, and a busy machine is slow.
func TestDaemonThatHangsIsReplacedOnlyWhenNoTaskIsThere(t *testing.T) {
	b := newBench(t)
	b.hurry()
	first := b.wantReady()
	b.behave("hang")
	now := b.until("it is noticed", reason("no answer in time"))
	if now.Since.IsZero() {
		t.Errorf("status is %+v", now)
	}
	b.until("it is tried again", func(s Status) bool { return s.Action != "" })
	if !exists(first.PID) {
		t.Fatal("a daemon that may have tasks was ended")
	}
	empty := b.spec()
	empty.EmptyAt = now.Since.Add(-time.Hour) // before it began to hang
	b.Want([]Spec{empty})
	b.until("it is tried again", func(s Status) bool { return s.Action != "" })
	if !exists(first.PID) {
		t.Fatal("a daemon that may have tasks was ended")
	}
	empty.EmptyAt = time.Now()
	b.Want([]Spec{empty})
	b.untilGone(first.PID)
	b.behave("")
	if s := b.until("another is ready", ready); s.Generation != 2 || s.LastEnd != "it did not answer and was replaced" {
		t.Errorf("status is %+v", s)
	}
}

func (b *bench) untilGone(pid int) {
	b.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); exists(pid); <-tick.C {
		if time.Now().After(deadline) {
			b.t.Fatalf("process %d still runs", pid)
		}
	}
}

func TestDaemonThatIsSlowOnceStaysReady(t *testing.T) {
	k := &keeper{log: benchOptions("", "").Logger, control: control{uuid: device}, intervals: intervals{maxFailures: 3}}
	failures, err := 0, error(nil)
	for i, want := range []bool{false, false, true} {
		if failures, err = k.onProbe(failures, fmt.Errorf("asked: %w", errSlow)); (err != nil) != want {
			t.Errorf("question %d: %v", i, err)
		}
	}
	if failures, err = k.onProbe(2, nil); failures != 0 || err != nil {
		t.Errorf("after an answer: %d, %v", failures, err)
	}
	if _, err = k.onProbe(0, errUntrue); !errors.Is(err, errUntrue) {
		t.Errorf("after an untrue answer: %v", err)
	}
}

// A daemon that a busy machine lets wait is not replaced at the first question: the next
// would have to wait as well.
func TestAnEmptyDaemonIsReplacedAfterSeveralQuestions(t *testing.T) {
	log := benchOptions("", "").Logger
	k := &keeper{log: log, control: control{uuid: device, dirs: dirsIn(t.TempDir(), device)}, intervals: intervals{maxFailures: 3},
		downSince: time.Now().Add(-time.Minute), emptyAt: time.Now()}
	for n, err := range []error{errSlow, errSlow, errUntrue, errSlow, errSlow, errSlow} {
		if got := k.replaceIfEmpty(err); !errors.Is(got, err) {
			t.Errorf("question %d: %v", n, got)
		}
		if replaced := k.ended != ""; replaced != (n == 5) {
			t.Errorf("after question %d replaced is %v", n, replaced)
		}
	}
}

func TestDaemonThatLiesIsNotTrusted(t *testing.T) {
	b := newBench(t)
	first := b.wantReady()
	b.behave("lie")
	s := b.until("it is noticed", notReady)
	if !strings.Contains(s.Reason, "not as set") || !strings.Contains(s.Reason, `"7.0"`) {
		t.Errorf("reason is %q", s.Reason)
	}
	b.behave("")
	if s := b.until("it is trusted again", ready); s.PID != first.PID {
		t.Error("a daemon with tasks on it was replaced")
	}
}

func TestDaemonThatDoesNotStartSaysWhy(t *testing.T) {
	b := newBench(t)
	d := dirsIn(filepath.Join(b.dir, "mps"), device)
	if err := d.make(); err != nil {
		t.Fatal(err)
	}
	b.behave("refuse")
	b.Want([]Spec{b.spec()})
	s := b.until("the reason is known", reason("told to refuse"))
	since := s.Since
	b.behave("")
	if s := b.until("it starts after all", ready); !s.Since.IsZero() || since.IsZero() {
		t.Errorf("since is %s before and %s after", since, s.Since)
	}
}

// Where the driver lies elsewhere, the daemon's server is found beside its program
// and finds its libraries.
func TestDaemonIsLedToTheDriver(t *testing.T) {
	b := newBench(t)
	b.Close()
	b.libraries = "/opt/driver/lib"
	b.start()
	b.wantReady()
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", b.server()))
	if err != nil {
		t.Fatal(err)
	}
	beside := filepath.Dir(b.program)
	for _, want := range []string{"LD_LIBRARY_PATH=/opt/driver/lib", ":" + beside + ":" + filepath.Join(beside, "../sbin")} {
		if !slices.ContainsFunc(strings.Split(string(env), "\x00"), func(v string) bool { return v == want || strings.HasPrefix(v, "PATH=") && strings.HasSuffix(v, want) }) {
			t.Errorf("%s is not in %q", want, env)
		}
	}
}

func TestStateDirectoryThatIsTooLongIsRefused(t *testing.T) {
	_, err := New(Options{Logger: benchOptions("", "").Logger, StateDir: "/tmp/" + strings.Repeat("x", 80)})
	if err == nil || !strings.Contains(err.Error(), "characters shorter") {
		t.Errorf("got %v", err)
	}
}

// A daemon greets one connection at a time: who connects and stays silent holds up
// all questions. Tasks must not pay for that with the daemon.
func TestStalledProgramsDoNotCostTheDaemon(t *testing.T) {
	for _, v := range []variant{newest, {branch: "555", original: true, memory: true, multiUser: true}} {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			b := newBenchWith(t, v, false)
			b.hurry()
			first := b.wantReady()
			silent, err := net.Dial("unixpacket", filepath.Join(first.ControlDir, "control"))
			if err != nil {
				t.Fatal(err)
			}
			b.until("it is noticed", reason("no answer in time"))
			silent.Close()
			if s := b.until("it is ready again", ready); s.PID != first.PID || s.Generation != 1 {
				t.Errorf("first %+v, then %+v", first, s)
			}
		})
	}
}

func TestDaemonThatCrashesAtACommandIsReplaced(t *testing.T) {
	b := newBench(t)
	first := b.wantReady()
	b.behave("crash")
	b.until("it is noticed", notReady)
	b.behave("")
	if s := b.until("another is ready", ready); s.Generation < 2 || s.PID == first.PID || s.LastEnd == "" {
		t.Errorf("first %+v, then %+v", first, s)
	}
}

func TestLogsAreBounded(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		s := b.wantReady()
		path := filepath.Join(s.LogDir, "control.log")
		filler := strings.Repeat("x", 99) + "\n"
		log, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		if _, err := log.WriteString(strings.Repeat(filler, maxLog/len(filler)+1)); err != nil {
			t.Fatal(err)
		}
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(time.Minute); ; <-tick.C {
			// What is written between the copy of its end and its truncation is lost.
			kept, err := os.Stat(path + ".1")
			rest, restErr := os.Stat(path)
			if err == nil && restErr == nil && kept.Size() == logTail && rest.Size() < maxLog/2 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the log was not truncated")
			}
		}
		b.ask("get_server_list")
		b.untilLogged(s, "control.log", "get_server_list")
		text, err := os.ReadFile(path)
		if err != nil || len(text) > maxLog/2 || strings.Contains(string(text), "\x00") {
			t.Errorf("the log goes on with %d bytes (%v)", len(text), err)
		}
	})
}
