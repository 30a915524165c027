package mps

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDaemonIsReadyWithItsLimits(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Want([]Spec{b.spec()})
		s := b.until("the daemon is ready", ready)
		if s.Generation != 1 || s.PID == 0 || s.Reason != "" || s.Server != ServerActive || s.MultiUser != b.multiUser {
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
		for path, want := range map[string]os.FileMode{s.PipeDir: 0o755, s.ShmDir: 0o777, b.dir: 0o711} {
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
		b.Want([]Spec{b.spec()})
		first := b.until("the daemon is ready", ready)
		if err := unix.Kill(first.PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		down := b.until("its death is noticed", func(s Status) bool { return notReady(s) || s.Generation > 1 })
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("noticed after %s", took)
		}
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

// oneOfEach fails the test unless one daemon and one server run.
func (b *bench) oneOfEach() {
	b.t.Helper()
	c := b.control(device)
	if daemons, servers := c.running(roleDaemon), c.running(roleServer); len(daemons) != 1 || len(servers) != 1 {
		b.t.Errorf("daemons %v and servers %v run", daemons, servers)
	}
}

// A server that outlives its daemon can no longer be asked or limited, and holds
// memory of the GPU.
func TestServerDoesNotOutliveItsDaemon(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Want([]Spec{b.spec()})
		s := b.until("the daemon is ready", ready)
		server, err := findProcess(b.server())
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
		if server.alive() {
			t.Error("the server of the first daemon still runs")
		}
	})
}

func TestServerThatDiesIsReplaced(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Want([]Spec{b.spec()})
		first := b.until("the daemon is ready", ready)
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

func TestDaemonIsAdoptedAfterRestart(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Want([]Spec{b.spec()})
		first := b.until("the daemon is ready", ready)
		b.Close()
		if !(process{first.PID, 0}).exists() {
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
		b.Want([]Spec{b.spec()})
		first := b.until("the daemon is ready", ready)
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

// exists is alive without regard to the time of the start.
func (p process) exists() bool {
	_, err := findProcess(p.PID)
	return err == nil
}

func TestDaemonThatNobodyWantsEnds(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Want([]Spec{b.spec()})
		first := b.until("the daemon is ready", ready)
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
	b.Want([]Spec{b.spec()})
	first := b.until("the daemon is ready", ready)
	b.behave("hang")
	now := b.until("it is noticed", reason("no answer in time"))
	if now.Since.IsZero() {
		t.Errorf("status is %+v", now)
	}
	b.until("it is tried again", func(s Status) bool { return s.Action != "" })
	if !(process{first.PID, 0}).exists() {
		t.Fatal("a daemon that may have tasks was ended")
	}
	empty := b.spec()
	empty.EmptyAt = now.Since.Add(-time.Hour) // before it began to hang
	b.Want([]Spec{empty})
	b.until("it is tried again", func(s Status) bool { return s.Action != "" })
	if !(process{first.PID, 0}).exists() {
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
	for deadline := time.Now().Add(time.Minute); (process{pid, 0}).exists(); <-tick.C {
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

func TestDaemonThatLiesIsNotTrusted(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{b.spec()})
	first := b.until("the daemon is ready", ready)
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

func TestLimitsThatChangeReachTheRunningServer(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Want([]Spec{b.spec()})
		b.until("the daemon is ready", ready)
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
		b.Want([]Spec{b.spec()})
		b.until("the daemon is ready", ready)
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
		b.Want([]Spec{b.spec()})
		b.until("the daemon is ready", ready)
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

func TestServerWithAFaultIsNotReadyAndSaysWhoseItIs(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		if b.branch == "470" || b.branch == "535" {
			t.Skip("this branch does not tell the state of a server")
		}
		b.Want([]Spec{b.spec()})
		first := b.until("the daemon is ready", ready)
		log := "[2026-11-22 09:00:00.000 Other 77] Client process 4711 encountered a fatal GPU error.\n[2026-11-22 09:00:00.000 Server 77] going on\n"
		if err := os.WriteFile(filepath.Join(first.LogDir, "server.log"), []byte(log), 0o644); err != nil {
			t.Fatal(err)
		}
		b.behave("fault")
		s := b.until("it is noticed", reason("fatal GPU error"))
		if s.Server != ServerFault || !strings.Contains(s.Reason, "(server.log: Client process 4711 encountered a fatal GPU error.)") {
			t.Errorf("status is %+v", s)
		}
		b.behave("")
		if s := b.until("it is ready", ready); s.Generation != 1 || s.PID != first.PID {
			t.Errorf("status is %+v", s)
		}
	})
}

func TestServerThatDoesNotStartSaysWhy(t *testing.T) {
	b := newBench(t)
	d := dirsIn(b.root, device)
	if err := d.make(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.log, "server.log"), []byte("[2026-11-22 09:00:00.000 Server 77] MPS server failed to start\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.behave("no-server")
	b.Want([]Spec{b.spec()})
	b.until("it is noticed", reason("its server does not start: MPS server failed to start"))
	b.behave("")
	b.until("it is ready", ready)
}

func TestStateDirectoryThatIsTooLongIsRefused(t *testing.T) {
	_, err := New(Options{Logger: benchOptions("", "").Logger, StateDir: "/tmp/" + strings.Repeat("x", 80)})
	if err == nil || !strings.Contains(err.Error(), "characters shorter") {
		t.Errorf("got %v", err)
	}
}

// Tasks that are root in their containers can write into the pipe directory.
func TestWhatTasksPutIntoThePipeDirectoryIsNoDaemon(t *testing.T) {
	for name, put := range map[string]func(t *testing.T, d dirs){
		"a FIFO as PID file": func(t *testing.T, d dirs) {
			if err := unix.Mkfifo(filepath.Join(d.pipe, "nvidia-cuda-mps-control.pid"), 0o666); err != nil {
				t.Fatal(err)
			}
		},
		"process 1 in the PID file": func(t *testing.T, d dirs) {
			if err := os.WriteFile(filepath.Join(d.pipe, "nvidia-cuda-mps-control.pid"), []byte("1\n"), 0o666); err != nil {
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
		b.Want([]Spec{b.spec()})
		first := b.until("the daemon is ready", ready)
		b.Close()
		path := filepath.Join(first.PipeDir, "nvidia-cuda-mps-control.pid")
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

// A task can remove the socket. That must not cost its neighbours the daemon.
func TestDaemonWithoutASocketIsReplacedOnlyWhenNoTaskIsThere(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Want([]Spec{b.spec()})
		first := b.until("the daemon is ready", ready)
		for _, name := range []string{"control", "control_privileged"} {
			if err := os.Remove(filepath.Join(first.PipeDir, name)); err != nil {
				t.Fatal(err)
			}
		}
		now := b.until("it is noticed", reason("was removed"))
		if !(process{first.PID, 0}).exists() || !strings.Contains(now.Action, "when no task is on the device") {
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

// A daemon greets one connection at a time: a task that connects and stays silent
// holds up all questions. Its neighbours must not pay for that with the daemon.
func TestTaskThatHoldsUpTheDaemonCostsNobodyTheDaemon(t *testing.T) {
	for _, v := range []variant{newest, {branch: "555", original: true, memory: true, multiUser: true}} {
		t.Run(v.String(), func(t *testing.T) {
			b := newBenchWith(t, v, false)
			b.Want([]Spec{b.spec()})
			first := b.until("the daemon is ready", ready)
			silent, err := net.Dial("unixpacket", filepath.Join(first.PipeDir, "control"))
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
	b.Want([]Spec{b.spec()})
	first := b.until("the daemon is ready", ready)
	b.behave("crash")
	b.until("it is noticed", notReady)
	b.behave("")
	if s := b.until("another is ready", ready); s.Generation < 2 || s.PID == first.PID || s.LastEnd == "" {
		t.Errorf("first %+v, then %+v", first, s)
	}
}

func TestLogsAreBounded(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Want([]Spec{b.spec()})
		s := b.until("the daemon is ready", ready)
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
			if info, err := os.Stat(path + ".1"); err == nil && info.Size() == logTail {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the log was not truncated")
			}
		}
		b.ask("get_server_list")
		text, err := os.ReadFile(path)
		if err != nil || len(text) > maxLog/2 || strings.Contains(string(text), "\x00") || !strings.Contains(string(text), "get_server_list") {
			t.Errorf("the log goes on with %d bytes (%v)", len(text), err)
		}
	})
}

// superviseCommand runs the test binary as a plugin that can be killed.
const superviseCommand = "supervise"

// supervise keeps a daemon until it is killed: args are the state directory, the
// program and the memory of the device.
func supervise(args []string) {
	mib, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		panic(err)
	}
	s, err := New(benchOptions(args[0], args[1]))
	if err != nil {
		panic(err)
	}
	s.Want([]Spec{{UUID: device, MemoryMiB: mib, Percent: 80, MaxClients: 48}})
	select {}
}

// kills is how many processes TestNothingIsLeftAfterKills kills with each program.
func kills(t *testing.T) int {
	if n, err := strconv.Atoi(os.Getenv("NOMAD_GPU_KILLS")); err == nil {
		return n
	}
	if testing.Short() {
		return 3
	}
	return 10
}

// What was started always ends, whoever is killed at whatever moment: plugin,
// daemon or server.
func TestNothingIsLeftAfterKills(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		b.Close()
		random := rand.New(rand.NewPCG(1, uint64(len(b.String()))))
		c := b.control(device)
		var plugin *exec.Cmd
		end := func() {
			if plugin != nil {
				_, _ = plugin.Process.Kill(), plugin.Wait()
				plugin = nil
			}
		}
		defer end()
		killed := map[string]int{}
		for range kills(t) {
			if plugin == nil {
				plugin = exec.Command("/proc/self/exe", superviseCommand, b.dir, b.program, fmt.Sprint(b.spec().MemoryMiB))
				if err := plugin.Start(); err != nil {
					t.Fatal(err)
				}
			}
			// From before the daemon starts until after it is ready.
			<-time.After(time.Duration(random.IntN(250)) * time.Millisecond)
			var victims []process
			switch random.IntN(3) {
			case 0:
				end()
				killed["plugin"]++
			case 1:
				victims = c.running(roleDaemon)
			case 2:
				victims = c.running(roleServer)
			}
			for _, p := range victims {
				_ = unix.Kill(p.PID, syscall.SIGKILL)
				killed["daemon or server"]++
			}
			if daemons := c.running(roleDaemon); len(daemons) > 2 {
				t.Fatalf("%d daemons run", len(daemons)) // one, and one that is about to become it
			}
		}
		end()
		b.start()
		b.Want([]Spec{b.spec()})
		b.until("the daemon is ready after all", ready)
		b.oneOfEach()
		b.Want(nil)
		b.Close()
		if left := c.running(roleDaemon, roleServer); len(left) > 0 {
			t.Errorf("%v are left", left)
		}
		b.start()
		t.Logf("killed %v", killed)
	})
}
