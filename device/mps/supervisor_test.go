package mps

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// controlProgram is the stand-in for NVIDIA's control program. It is started
// exactly as the real one would be.
var controlProgram string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ExecCommand {
		fmt.Fprintln(os.Stderr, Exec(os.Args[2:], os.Environ()))
		os.Exit(1)
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nomad-gpu-mps")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	controlProgram = filepath.Join(dir, "nvidia-cuda-mps-control")
	if out, err := exec.Command("go", "build", "-o", controlProgram, "../sim/nvidia-cuda-mps-control").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build stand-in: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

const device = "GPU-11111111-2222-3333-4444-555555555555"

// bench is a supervisor with a state directory, restarted at will.
type bench struct {
	*Supervisor
	t       *testing.T
	dir     string
	changed chan struct{}
	hostShm bool
	// startScope stands in for systemd's where a test sets it.
	startScope func(context.Context, scope) error
}

func newBench(t *testing.T) *bench { return newBenchWith(t, false) }

func newBenchWith(t *testing.T, hostShm bool) *bench {
	if os.Getuid() != 0 {
		t.Skip("an MPS control daemon needs a mount namespace of its own, and that needs root")
	}
	// Not t.TempDir: the path of a socket is limited to 107 characters.
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Cleanup(func() { _ = dirsIn(filepath.Join(dir, "mps"), device).unmountShm() })
	b := &bench{t: t, dir: dir, changed: make(chan struct{}, 1), hostShm: hostShm}
	b.start()
	t.Cleanup(func() {
		b.Want(nil)
		b.Close()
	})
	return b
}

func (b *bench) start() {
	b.t.Helper()
	s, err := New(Options{
		Logger: hclog.NewNullLogger(), StateDir: b.dir, Program: controlProgram, Self: "/proc/self/exe", MultiUser: true, HostShm: b.hostShm, ShmMiB: 16,
		Changed: func() {
			select {
			case b.changed <- struct{}{}:
			default:
			}
		},
		pace:    pace{alive: 20 * time.Millisecond, answer: 100 * time.Millisecond, retry: 20 * time.Millisecond, patience: 2},
		timeout: time.Second, startScope: b.startScope,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.Supervisor = s
}

// until waits for a status.
func (b *bench) until(what string, wanted func(Status) bool) Status {
	b.t.Helper()
	limit := time.After(time.Minute)
	for {
		if s := b.Status(device); wanted(s) {
			return s
		}
		select {
		case <-b.changed:
		case <-limit:
			b.t.Fatalf("gave up waiting until %s; now %+v", what, b.Status(device))
		}
	}
}

func ready(s Status) bool    { return s.Ready }
func notReady(s Status) bool { return !s.Ready }

func (b *bench) behave(word string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.Status(device).PipeDir, "behaviour"), []byte(word), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) ask(command string) string {
	b.t.Helper()
	answer, err := b.control(device).ask(b.t.Context(), command)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer
}

func spec() Spec { return Spec{UUID: device, MemoryMiB: 80896, Percent: 80, MaxClients: 48} }

func TestDaemonIsReadyWithItsLimits(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
	s := b.until("the daemon is ready", ready)
	if s.Generation != 1 || s.PID == 0 || s.Reason != "" {
		t.Errorf("status is %+v", s)
	}
	if got := b.ask("get_default_device_pinned_mem_limit 0"); got != "80896M" {
		t.Errorf("memory limit is %q", got)
	}
	if got := b.ask("get_default_active_thread_percentage"); got != "80.0" {
		t.Errorf("thread percentage is %q", got)
	}
	for path, want := range map[string]os.FileMode{s.PipeDir: 0o755, s.ShmDir: 0o777, b.dir: 0o711} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v (%v), want %v", path, info.Mode().Perm(), err, want)
		}
	}
}

func TestDaemonThatDiesIsReplaced(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
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
}

func TestDaemonIsAdoptedAfterRestart(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
	first := b.until("the daemon is ready", ready)
	b.Close()
	if !(process{first.PID, 0}).exists() {
		t.Fatal("the daemon ended with the supervisor")
	}
	b.start()
	b.Want([]Spec{spec()})
	second := b.until("it is adopted", ready)
	if second.PID != first.PID || second.Generation != first.Generation {
		t.Errorf("got %+v, want the daemon of %+v", second, first)
	}
}

// Nomad stops and starts plugins at any moment. A daemon must not pay for it.
func TestDaemonSurvivesASupervisorThatIsStoppedAtOnce(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
	first := b.until("the daemon is ready", ready)
	for range 20 {
		b.Close()
		b.start()
		b.Want([]Spec{spec()})
	}
	b.Close()
	b.start()
	b.Want([]Spec{spec()})
	if s := b.until("it is adopted", ready); s.PID != first.PID || s.Generation != first.Generation {
		t.Errorf("got %+v, want the daemon of %+v", s, first)
	}
}

// exists is alive without regard to the time of the start.
func (p process) exists() bool {
	_, err := findProcess(p.PID)
	return err == nil
}

func TestDaemonThatNobodyWantsEnds(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
	first := b.until("the daemon is ready", ready)
	b.Close()
	b.start()
	b.Want(nil) // the configuration has changed while the plugin was away
	b.Close()
	if (process{first.PID, 0}).exists() {
		t.Error("the daemon still runs")
	}
	b.start()
}

func TestDaemonThatHangsIsReplaced(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
	first := b.until("the daemon is ready", ready)
	b.behave("hang")
	b.until("it is noticed", notReady)
	for (process{first.PID, 0}).exists() {
		select {
		case <-b.changed:
		case <-time.After(10 * time.Millisecond):
		}
	}
	b.behave("")
	if s := b.until("another is ready", ready); s.Generation < 2 || s.LastEnd != "it did not answer and was replaced" {
		t.Errorf("status is %+v", s)
	}
}

func TestDaemonThatLiesIsNotTrusted(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
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
	if err := os.WriteFile(filepath.Join(d.pipe, "behaviour"), []byte("refuse"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Want([]Spec{spec()})
	s := b.until("the reason is known", func(s Status) bool { return strings.Contains(s.Reason, "told to refuse") })
	since := s.Since
	b.behave("")
	if s := b.until("it starts after all", ready); !s.Since.IsZero() || since.IsZero() {
		t.Errorf("since is %s before and %s after", since, s.Since)
	}
}

func TestDaemonGetsOtherLimits(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
	b.until("the daemon is ready", ready)
	for percent := 50; percent < 60; percent++ {
		other := spec()
		other.Percent = percent
		b.Want([]Spec{other})
		s := b.until("it is ready again", ready) // and not still, with the limits that it had
		if got, want := b.ask("get_default_active_thread_percentage"), fmt.Sprintf("%d.0", percent); got != want || s.Generation != 1 {
			t.Errorf("thread percentage is %q, want %s, status %+v", got, want, s)
		}
	}
}

func TestStateDirectoryThatIsTooLongIsRefused(t *testing.T) {
	_, err := New(Options{Logger: hclog.NewNullLogger(), StateDir: "/tmp/" + strings.Repeat("x", 80)})
	if err == nil || !strings.Contains(err.Error(), "characters shorter") {
		t.Errorf("got %v", err)
	}
}

func TestPIDFileOfAnotherProcessIsNoDaemon(t *testing.T) {
	b := newBench(t)
	d := dirsIn(filepath.Join(b.dir, "mps"), device)
	if err := d.make(); err != nil {
		t.Fatal(err)
	}
	sleeper := exec.Command("sleep", "60")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = sleeper.Process.Signal(syscall.SIGKILL)
		_ = sleeper.Wait()
	}()
	if err := os.WriteFile(d.pidFile(), fmt.Appendf(nil, "%d\n", sleeper.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	b.Want([]Spec{spec()})
	if s := b.until("a daemon is ready", ready); s.PID == sleeper.Process.Pid {
		t.Error("adopted a process that is no daemon")
	}
}

func TestDaemonThatCrashesAtACommandIsReplaced(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
	first := b.until("the daemon is ready", ready)
	b.behave("crash")
	b.until("it is noticed", notReady)
	b.behave("")
	if s := b.until("another is ready", ready); s.Generation < 2 || s.PID == first.PID || s.LastEnd != "it ended" {
		t.Errorf("first %+v, then %+v", first, s)
	}
}
