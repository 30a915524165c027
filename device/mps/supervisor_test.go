package mps

import (
	"errors"
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
		timeout: time.Second,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.Supervisor = s
}

// until waits for a status.
func (b *bench) until(what string, wanted func(Status) bool) Status {
	b.t.Helper()
	limit := time.After(20 * time.Second)
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

func TestDaemonHasItsOwnSharedMemory(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
	s := b.until("the daemon is ready", ready)
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

func (b *bench) leave(s Status, name string, bytes int) error {
	return os.WriteFile(filepath.Join(s.ShmDir, name), make([]byte, bytes), 0o600)
}

// A task must not fill the host's memory through what it shares.
func TestSharedMemoryIsLimited(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
	first := b.until("the daemon is ready", ready)
	if err := b.leave(first, "large", 17<<20); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("17 MiB in 16 MiB: %v", err)
	}
	b.Close() // as with a plugin that is killed: nothing is unmounted
	b.start()
	b.Want([]Spec{spec()})
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

func mountsOn(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), " "+path+" ")
}

func TestDaemonWithAnotherSharedMemoryIsNotReady(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{spec()})
	s := b.until("the daemon is ready", ready)
	b.Close()
	if err := unix.Unmount(s.ShmDir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.Want([]Spec{spec()})
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
	b.Want([]Spec{spec()})
	s := b.until("the daemon is ready", ready)
	if err := b.leave(s, "left", 1); err != nil {
		t.Fatal(err)
	}
	empty := spec()
	empty.EmptyAt = time.Now().Add(time.Hour)
	b.Want([]Spec{empty})
	for deadline := time.Now().Add(20 * time.Second); len(dirsIn(b.root, device).shmNames()) > 0; {
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
	b := newBenchWith(t, true)
	b.Want([]Spec{spec()})
	s := b.until("the daemon is ready", ready)
	mine, err1 := os.Readlink("/proc/self/ns/mnt")
	its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", s.PID))
	if err1 != nil || err2 != nil || mine != its || s.ShmDir != "/dev/shm" {
		t.Errorf("mount namespaces are %q and %q (%v, %v), shared memory is %s", mine, its, err1, err2, s.ShmDir)
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
	if second.PID == first.PID {
		t.Error("the process is the same")
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
	if s := b.until("another is ready", ready); s.Generation < 2 {
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
	other := spec()
	other.Percent = 50
	b.Want([]Spec{other})
	b.until("it is being changed", notReady)
	s := b.until("it is ready again", ready)
	if got := b.ask("get_default_active_thread_percentage"); got != "50.0" || s.Generation != 1 {
		t.Errorf("thread percentage is %q, status %+v", got, s)
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

func TestParseMemory(t *testing.T) {
	for _, tc := range []struct {
		answer string
		want   int64
	}{
		{"8192M", 8192}, {"8192MB", 8192}, {"8G", 8192}, {"8589934592", 8192}, {"0x200000000", 8192}, {"8388608K", 8192},
		{"Device 0 limit 8192M", 8192},
	} {
		if got, err := parseMemory(tc.answer); err != nil || got != tc.want {
			t.Errorf("parseMemory(%q) = %d, %v; want %d", tc.answer, got, err, tc.want)
		}
	}
	for _, bad := range []string{"", "none", "M", "unlimited"} {
		if got, err := parseMemory(bad); err == nil {
			t.Errorf("parseMemory(%q) = %d", bad, got)
		}
	}
}

func FuzzParseMemory(f *testing.F) {
	for _, seed := range []string{"8192M", "8G", "0x200000000", "limit 8192M", "", "-1", "M"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		if mib, err := parseMemory(answer); err == nil && mib < 0 {
			t.Errorf("parseMemory(%q) = %d", answer, mib)
		}
	})
}
