// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/cuda"
	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/tmpfs"
)

// standInDir holds the stand-in for NVIDIA's control program, once per branch,
// and in bin as the server. They are started exactly as the originals would be.
var standInDir string

func TestMain(m *testing.M) {
	switch {
	case slices.Contains(os.Environ(), waitVariable):
		fmt.Print("+")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case len(os.Args) > 1 && os.Args[1] == ExecCommand:
		fmt.Fprintln(os.Stderr, Exec(os.Args[2:], os.Environ()))
		os.Exit(1)
	case len(os.Args) > 1 && os.Args[1] == GateCommand:
		if err := RunGate(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case len(os.Args) > 1 && os.Args[1] == cuda.ProbeCommand:
		fmt.Fprintln(os.Stderr, cuda.Check())
		os.Exit(1)
	case len(os.Args) > 1 && os.Args[1] == connectCommand:
		connect(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == floodCommand:
		flood(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == superviseCommand:
		supervise(os.Args[2:])
	}
	os.Exit(runTests(m))
}

// waitVariable has the tests wait for the end of their standard input, whatever their
// arguments are.
const waitVariable = "NOMAD_GPU_TEST_WAITS=yes"

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "nomad-gpu-mps")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	standInDir = dir
	if err := os.Chmod(dir, 0o711); err != nil { // servers run as any user
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	server := filepath.Join(dir, "bin", serverProgram)
	if out, err := exec.Command("go", "build", "-o", server, "../sim/nvidia-cuda-mps-control").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build stand-in: %v\n%s", err, out)
		return 1
	}
	// Gates are processes of their own: this test's binary, built with -race, starts slowly.
	for name, source := range map[string]string{"mps-client": "../sim/mps-client", "mps-gate": "../../e2e/mpsgate"} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "bin", name), source).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", name, err, out)
			return 1
		}
	}
	for _, v := range slices.Concat(variants, third, []variant{partitioner}) {
		if err := os.MkdirAll(filepath.Join(dir, v.branch), 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if err := os.Link(server, filepath.Join(dir, v.branch, "nvidia-cuda-mps-control")); err != nil && !os.IsExist(err) {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	// The originals find their server on the path.
	os.Setenv("PATH", filepath.Join(dir, "bin")+":"+os.Getenv("PATH"))
	// Tests wait for daemons more than they compute.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set("8")
	}
	code := m.Run()
	if err := leaktest.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// variant is a control program: NVIDIA's of a driver branch, or the stand-in for
// it. NVIDIA's server ends where there is no GPU, so with the originals, too, the stand-in is
// the server.
type variant struct {
	branch            string
	original          bool
	memory, multiUser bool
}

var variants = []variant{
	{branch: "470"}, {branch: "535", memory: true}, {branch: "550", memory: true}, {branch: "555", memory: true, multiUser: true},
	{branch: "470", original: true}, {branch: "535", original: true, memory: true},
	{branch: "550", original: true, memory: true}, {branch: "555", original: true, memory: true, multiUser: true},
}

// partitioner is the stand-in for the branch that has static partitions, which could not
// be had.
var partitioner = variant{branch: "590", memory: true, multiUser: true}

func (v variant) String() string {
	if v.original {
		return "NVIDIA's " + v.branch
	}
	return "stand-in " + v.branch
}

func (v variant) program(t *testing.T) string {
	t.Helper()
	if !v.original {
		return filepath.Join(standInDir, v.branch, "nvidia-cuda-mps-control")
	}
	path := filepath.Join(v.driver(), "usr/bin/nvidia-cuda-mps-control")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("NVIDIA's control program of branch %s is not there; e2e/prepare tests fetches it from Debian where it can: %v", v.branch, err)
	}
	return path
}

// driver is where NVIDIA's driver of the branch is unpacked.
func (v variant) driver() string {
	cache := os.Getenv("NOMAD_GPU_CACHE")
	if cache == "" {
		cache = "/var/cache/nomad-gpu"
	}
	return filepath.Join(cache, "nvidia", v.branch)
}

// newest is the stand-in that most tests of the supervisor alone run with.
var newest = variant{branch: "555", memory: true, multiUser: true}

// withEach runs a test with every control program, or with that alone which
// NOMAD_GPU_MPS_PROGRAM names: "stand-in 555", "NVIDIA's 535".
func withEach(t *testing.T, test func(t *testing.T, b *bench)) {
	only := os.Getenv("NOMAD_GPU_MPS_PROGRAM")
	for _, v := range variants {
		if only != "" && only != v.String() {
			continue
		}
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel() // they mostly wait
			test(t, newBenchWith(t, v, false))
		})
	}
}

const device = "GPU-11111111-2222-3333-4444-555555555555"

// bench is a supervisor with a state directory, restarted at will.
type bench struct {
	*Supervisor
	variant
	t       *testing.T
	dir     string
	changed chan struct{}
	hostShm bool
	program string
	// libraries is the library path that a test sets.
	libraries string
	// timeout is for an answer, where a test sets it.
	timeout time.Duration
	// answer is how often the daemon is asked; 0 is as often as any bench does.
	answer time.Duration
	// startScope stands in for systemd's where a test sets it.
	startScope func(context.Context, scope) error
	// tenant finds the tasks of other drivers where a test sets it.
	tenant TenantFinder
}

// newBench is for tests of the supervisor alone, which run beside others.
func newBench(t *testing.T) *bench {
	t.Helper()
	t.Parallel()
	return newBenchWith(t, newest, false)
}

func newBenchWith(t *testing.T, v variant, hostShm bool) *bench {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("an MPS control daemon needs a mount namespace of its own, and that needs root")
	}
	dir := tmpfs.Dir(t)
	t.Cleanup(func() { _ = dirsIn(filepath.Join(dir, "mps"), device).unmountShm() })
	b := &bench{variant: v, t: t, dir: dir, changed: make(chan struct{}, 1), hostShm: hostShm, program: v.program(t)}
	b.start()
	t.Cleanup(func() {
		b.Want(nil)
		b.Close()
		if left := b.control(device).running(roleDaemon, roleServer, roleGate); len(left) > 0 {
			t.Errorf("%v are left", left)
		}
	})
	return b
}

// No answer takes so long as patient, however busy the machine is; impatient is for a
// daemon that gives none.
const (
	patient   = 20 * time.Second
	impatient = 3 * time.Second
)

func benchOptions(dir, program string) Options {
	self, err := exec.LookPath("mps-gate")
	if err != nil {
		self = "/proc/self/exe"
	}
	return Options{
		Logger: hclog.NewNullLogger(), StateDir: dir, Program: program, Self: self, MultiUser: true, ShmMiB: 16,
		Changed:   func() {},
		intervals: intervals{alive: 20 * time.Millisecond, answer: 100 * time.Millisecond, retry: 20 * time.Millisecond, maxRetry: 100 * time.Millisecond, maxFailures: 2},
		timeout:   patient,
	}
}

func (b *bench) start() {
	b.t.Helper()
	o := benchOptions(b.dir, b.program)
	o.HostShm, o.startScope, o.LibraryPath, o.Tenant = b.hostShm, b.startScope, b.libraries, b.tenant
	o.timeout = cmp.Or(b.timeout, o.timeout)
	o.intervals.answer = cmp.Or(b.answer, o.intervals.answer)
	o.Changed = func() {
		select {
		case b.changed <- struct{}{}:
		default:
		}
	}
	s, err := New(o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Supervisor = s
}

// hurry has the supervisor wait for no answer for long.
func (b *bench) hurry() {
	b.t.Helper()
	b.Close()
	b.timeout = impatient
	b.start()
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

// wantReady asks for the daemon and waits until it is ready.
func (b *bench) wantReady() Status {
	b.t.Helper()
	b.Want([]Spec{b.spec()})
	return b.until("the daemon is ready", ready)
}

func ready(s Status) bool    { return s.Ready }
func notReady(s Status) bool { return !s.Ready }

func reason(part string) func(Status) bool {
	return func(s Status) bool { return !s.Ready && strings.Contains(s.Reason, part) }
}

// behave makes the daemon or its server misbehave, a line for each way.
func (b *bench) behave(lines ...string) {
	b.t.Helper()
	path := filepath.Join(b.pipes(), "behavior")
	if err := os.WriteFile(path+".new", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		b.t.Fatal(err)
	}
}

// pipes is the daemon's own directory, which it and its server see as that of tasks.
func (b *bench) pipes() string { return dirsIn(filepath.Join(b.dir, "mps"), device).own }

// asking is the control of a daemon for a test's own questions: the supervisor's go on
// beside them, which on a busy machine takes a while.
func (b *bench) asking() control {
	c := b.control(device)
	c.Timeout = time.Minute
	return c
}

func (b *bench) ask(command string) string {
	b.t.Helper()
	answer, err := b.asking().Ask(b.t.Context(), command)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer
}

func (b *bench) server() int {
	b.t.Helper()
	servers, err := b.asking().Servers(b.t.Context())
	if err != nil || len(servers) != 1 {
		b.t.Fatalf("servers are %v, %v", servers, err)
	}
	return servers[0]
}

// spec is what is wanted of the device: on branches without memory limits it is
// one that is shared.
func (b *bench) spec() Spec {
	s := Spec{UUID: device, MemoryMiB: 80896, Percent: 80, MaxClients: 48}
	if !b.memory {
		s.MemoryMiB = 0
	}
	return s
}

// errSlow is what a question without an answer in time returns.
var errSlow = mpsctl.ErrTimeout
