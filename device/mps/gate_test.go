// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/device/cuda"
	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

func TestCUDAProgramsPassTheGate(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		s := b.wantReady()
		users := []uint32{0}
		if b.multiUser {
			users = append(users, 65534)
		}
		for _, user := range users {
			cmd, err := b.clientProgram(gateOf(s), user, time.Minute)
			if err != nil {
				t.Fatalf("user %d: %v", user, err)
			}
			b.untilLogged(s, "control.log", fmt.Sprintf("NEW CLIENT %d from user ", cmd.Process.Pid))
		}
		b.oneOfEach()
	})
}

// NVIDIA's own library comes to the server through the gate. It gets no further
// without a GPU: the stand-in does not tell it about one.
func TestNVIDIAsLibraryPassesTheGate(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		library := filepath.Join(b.driver(), "libcuda.so.1")
		if _, err := os.Stat(library); err != nil || !b.original {
			t.Skipf("there is no libcuda of this branch: %v", err)
		}
		s := b.wantReady()
		program := exec.Command("/proc/self/exe", cuda.ProbeCommand)
		program.Env = []string{"LD_LIBRARY_PATH=" + filepath.Dir(library), "CUDA_VISIBLE_DEVICES=" + device,
			"CUDA_MPS_PIPE_DIRECTORY=" + s.PipeDir, "CUDA_MPS_LOG_DIRECTORY=" + s.LogDir}
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = program.Process.Kill(), program.Wait() }()
		b.untilLogged(s, "control.log", fmt.Sprintf("NEW CLIENT %d from user 0: Server already exists", program.Process.Pid))
		if refused, err := os.ReadFile(filepath.Join(s.LogDir, gateLog)); err != nil || len(refused) > 0 {
			t.Errorf("the gate says %q (%v)", refused, err)
		}
	})
}

// answers are what a daemon says of all that a task might change.
func (b *bench) answers() (all []string) {
	server := strconv.Itoa(b.server())
	for _, question := range []string{"get_server_list", daemonLimits.getPercent, daemonLimits.getMemory,
		serverLimits(b.server()).getPercent, serverLimits(b.server()).getMemory, "get_client_list " + server, "get_default_client_priority"} {
		answer, err := b.asking().Ask(b.t.Context(), question)
		all = append(all, fmt.Sprint(question, ": ", answer, " ", err))
	}
	return all
}

func TestGateLetsCUDAProgramsPassAlone(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		s := b.wantReady()
		before := b.answers()
		server := b.server()
		for _, kind := range []mpswire.Kind{0, mpswire.KindServer, mpswire.KindDebuggee, mpswire.KindUI, 5, 1 << 31} {
			c, err := become(gateOf(s), kind)
			if err != nil {
				t.Fatal(err)
			}
			if packet, err := c.Receive(); !errors.Is(err, io.EOF) {
				t.Errorf("%s gets %q, %v", kind, packet, err)
			}
			c.Close()
		}
		tenant := b.control(device)
		tenant.PipeDir = s.PipeDir
		for _, command := range []string{
			"get_server_list", "quit", "quit -t 1", "set_default_active_thread_percentage 100", "set_default_device_pinned_mem_limit 0 1M",
			"set_default_client_priority 1", fmt.Sprintf("set_active_thread_percentage %d 100", server), fmt.Sprintf("set_device_pinned_mem_limit %d 0 1M", server),
			fmt.Sprintf("terminate_client %d %d", server, os.Getpid()), fmt.Sprintf("shutdown_server %d -f", server), "start_server -uid 65534",
		} {
			// The program ends with 0 or not, as the branch and the moment have it.
			if out, err := tenant.Run(t.Context(), tenant.Program, nil, command+"\n", nil); out != "" {
				t.Errorf("%q: %q, %v", command, out, err)
			}
		}
		if after := b.answers(); strings.Join(after, "\n") != strings.Join(before, "\n") {
			t.Errorf("before %q, after %q", before, after)
		}
		b.oneOfEach()
	})
}

// A daemon waits for what a program says, and for nothing else meanwhile.
func TestSilentProgramsDelayNoOthers(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		s := b.wantReady()
		var silent []mpswire.Conn
		keep := func(c mpswire.Conn, err error) mpswire.Conn {
			if err != nil {
				t.Fatal(err)
			}
			silent = append(silent, c)
			return c
		}
		defer func() {
			for _, c := range silent {
				c.Close()
			}
		}()
		for range 20 { // say nothing at all
			keep(mpswire.Dial(gateOf(s)))
		}
		for range 20 { // say who, not what
			c := keep(mpswire.Dial(gateOf(s)))
			if err := c.ExpectHello(); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write([]byte(mpswire.Credentials)); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 { // are given to the server, and do not go on
			if _, err := keep(become(gateOf(s), mpswire.KindClient)).ReceiveFile(); err != nil {
				t.Fatal(err)
			}
		}
		b.answers()
		// The gate does not wait for this one's status, which must not cost it a SIGPIPE.
		if _, err := b.clientProgram(gateOf(s), 0, 0); err != nil {
			t.Error(err)
		}
		if now := b.Status(device); !now.Ready || now.Generation != 1 {
			t.Errorf("status is %+v", now)
		}
	})
}

// What daemons read from their FIFO they believe: 4 KiB of anything stop them.
func TestWhatTasksLogStopsNoDaemon(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		s := b.wantReady()
		pipe, err := os.OpenFile(filepath.Join(s.PipeDir, "log"), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer pipe.Close()
		for range 100 {
			if _, err := pipe.Write([]byte(strings.Repeat("\xff", 4096))); err != nil {
				t.Fatal(err)
			}
		}
		b.answers()
		b.oneOfEach()
	})
}

func TestGateThatDiesIsReplaced(t *testing.T) {
	b := newBench(t)
	first := b.wantReady()
	gate := b.control(device).running(roleGate)
	if len(gate) != 1 {
		t.Fatalf("gates are %v", gate)
	}
	if err := unix.Kill(gate[0].PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.untilGone(gate[0].PID)
	b.untilPasses(gateOf(first))
	if s := b.until("it is ready", ready); s.PID != first.PID || s.Generation != 1 {
		t.Errorf("first %+v, then %+v", first, s)
	}
	b.oneOfEach()
}

// A plugin that was killed may have been starting a gate, which is there a moment later. The
// next plugin waits for it: a second one would be left without a socket.
func TestAGateOnItsWayIsTaken(t *testing.T) {
	b := newBench(t)
	b.wantReady()
	b.Close()
	c := b.control(device)
	for _, p := range c.running(roleGate) {
		_ = unix.Kill(p.PID, unix.SIGKILL)
		b.untilGone(p.PID)
	}
	lock, err := c.lockGate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.start()
	b.Want([]Spec{b.spec()})
	cmd := exec.Command("/proc/self/exe", GateCommand, detach, c.dirs.pipe, c.dirs.own)
	cmd.Env, cmd.Stdin, cmd.Stderr = []string{"CUDA_MPS_PIPE_DIRECTORY=" + c.dirs.pipe}, lock, os.Stderr
	said, err := cmd.Output()
	lock.Close()
	if err != nil {
		t.Fatal(err)
	}
	b.until("it is ready", ready)
	if gates := c.running(roleGate); len(gates) != 1 || strconv.Itoa(gates[0].PID) != string(said) {
		t.Errorf("gates are %v, want %s alone", gates, said)
	}
	b.oneOfEach()
}

// One that was being started and hangs is ended: it would keep the next from being started.
func TestAGateThatHangsOnItsWayIsReplaced(t *testing.T) {
	b := newBench(t)
	b.wantReady()
	b.Close()
	b.timeout = impatient
	c := b.control(device)
	for _, p := range c.running(roleGate) {
		_ = unix.Kill(p.PID, unix.SIGKILL)
		b.untilGone(p.PID)
	}
	lock, err := c.lockGate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hangs := exec.Command("/proc/self/exe")
	hangs.Args, hangs.ExtraFiles = []string{gateName, GateCommand, c.dirs.pipe, c.dirs.own}, []*os.File{lock}
	hangs.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + c.dirs.pipe, waitVariable}
	in, err := hangs.StdinPipe()
	if err == nil {
		err = hangs.Start()
	}
	lock.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = hangs.Wait() }()
	b.start()
	b.Want([]Spec{b.spec()})
	b.until("it is ready", ready)
	if gates := c.running(roleGate); len(gates) != 1 || gates[0].PID == hangs.Process.Pid {
		t.Errorf("gates are %v, want another than %d", gates, hangs.Process.Pid)
	}
}

// Containers hold the gate's socket itself: it must lead to the next daemon, and
// CUDA must fail meanwhile instead of finding none.
func TestGateOutlivesTheDaemon(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		first := b.wantReady()
		var before, after unix.Stat_t
		if err := unix.Stat(gateOf(first), &before); err != nil {
			t.Fatal(err)
		}
		b.Close() // nothing replaces it
		for _, p := range b.control(device).running(roleDaemon, roleServer) {
			_ = unix.Kill(p.PID, unix.SIGKILL)
			b.untilGone(p.PID)
		}
		look, err := mpswire.Dial(gateOf(first))
		if err != nil {
			t.Fatal(err)
		}
		if err := look.ExpectHello(); err != nil {
			t.Errorf("CUDA finds no daemon, and would run without limits: %v", err)
		}
		look.Close()
		if err := becomeClient(gateOf(first)); err == nil {
			t.Error("a program passes to a daemon that is gone")
		}
		b.start()
		b.Want([]Spec{b.spec()})
		b.until("another is ready", func(s Status) bool { return ready(s) && s.Generation == 2 })
		if err := unix.Stat(gateOf(first), &after); err != nil || before.Ino != after.Ino {
			t.Errorf("the socket is another (%v)", err)
		}
		if err := becomeClient(gateOf(first)); err != nil {
			t.Error(err)
		}
	})
}

// Where a server takes one user at a time, a program of another would wait without a
// word, and those that come after it.
func TestProgramOfAnotherUserIsRefusedAtOnce(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		if b.multiUser {
			t.Skip("this branch takes all users")
		}
		s := b.wantReady()
		first, err := b.clientProgram(gateOf(s), 0, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.clientProgram(gateOf(s), 65534, 0); err == nil {
			t.Error("a program of another user passes")
		}
		b.untilLogged(s, gateLog, "one user at a time")
		b.answers()
		_, _ = first.Process.Kill(), first.Wait()
		if cmd, err := b.clientProgram(gateOf(s), 65534, 0); err != nil {
			t.Errorf("process %d does not pass when the others have ended: %v", cmd.Process.Pid, err)
		}
	})
}

// A daemon of an earlier release listened where tasks connect.
func TestDaemonWithoutAGateIsReplacedWhenNoTaskIsThere(t *testing.T) {
	b := newBench(t)
	c := b.control(device)
	c = c.in(c.dirs.withoutGate())
	if err := c.dirs.make(); err != nil {
		t.Fatal(err)
	}
	if err := c.limitShm(process{}); err != nil {
		t.Fatal(err)
	}
	started, err := c.start(t.Context(), legacy{control: c})
	if err != nil {
		t.Fatal(err)
	}
	b.Want([]Spec{b.spec()})
	first := b.until("it is adopted", ready)
	if first.PID != started.PID || first.ControlDir != first.PipeDir {
		t.Fatalf("started %+v, adopted %+v", started, first)
	}
	none := b.spec()
	b.until("another is ready", func(s Status) bool {
		none.EmptyAt = time.Now()
		b.Want([]Spec{none})
		return ready(s) && s.PID != started.PID
	})
	if now := b.Status(device); now.Generation != 2 || now.ControlDir == now.PipeDir || !strings.Contains(now.LastEnd, "earlier release") {
		t.Errorf("status is %+v", now)
	}
	b.oneOfEach()
	if err := becomeClient(gateOf(first)); err != nil {
		t.Error(err)
	}
}

// A gate without a daemon refuses and must not hang.
func TestGateWithoutADaemonRefuses(t *testing.T) {
	dir := t.TempDir()
	listener, err := gatePlace{shown: dir, kept: t.TempDir()}.openGate()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	g := newGate(hclog.NewNullLogger(), filepath.Join(dir, "none"))
	g.introduction = 50 * time.Millisecond
	ended := make(chan error, 1)
	go func() { ended <- g.serve(ctx, listener) }()
	socket := filepath.Join(dir, "control")
	if err := becomeClient(socket); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	c, err := mpswire.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.ExpectHello(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("who says nothing gets %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
	if _, err := net.Dial("unixpacket", socket); err == nil {
		t.Error("it still listens")
	}
}

func TestLogPipeTakesThePlaceOfWhatIsThere(t *testing.T) {
	at := gatePlace{shown: t.TempDir(), kept: t.TempDir()}
	path := filepath.Join(at.shown, "log")
	if err := os.WriteFile(path, []byte("a task's"), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := at.openLogPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeNamedPipe|0o622 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	at.shown = filepath.Join(at.shown, "none")
	if pipe, err := at.openLogPipe(); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), at.shown) {
		pipe.Close()
		t.Errorf("in a directory that is not there: %v", err)
	}
}
