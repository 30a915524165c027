// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// third are the stand-ins for branches with MPS v3, which could not be had.
var third = []variant{{branch: "615", memory: true, multiUser: true}, {branch: "620", memory: true, multiUser: true}}

func withV3(t *testing.T, test func(t *testing.T, b *bench)) {
	for _, v := range third {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			test(t, newBenchWith(t, v, false))
		})
	}
}

func (b *bench) v3() mpsctl.V3 { return mpsctl.V3{Control: b.asking().Control} }

// group makes a control group for a test's programs, and returns its path as the kernel
// names it.
func group(t *testing.T, name string) (dir, path string) {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		root = filepath.Join(root, "freezer")
	}
	// As with a real task's, no other hierarchy of cgroup v1 has the program in a deeper one.
	path = fmt.Sprintf("/nomad-gpu-test-%d-%s/%s", os.Getpid(), strings.Repeat("x", 100), name)
	dir = filepath.Join(root, path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Skipf("no control group can be made: %v", err)
	}
	t.Cleanup(func() {
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if err := os.Remove(dir); err == nil || os.IsNotExist(err) {
				break
			}
		}
		_ = os.Remove(filepath.Dir(dir))
	})
	return dir, path
}

// tenantProgram is a program of a task, under MPS.
type tenantProgram struct {
	in  io.Writer
	out *bufio.Scanner
	cmd *exec.Cmd
}

// runIn runs a program of a task in a control group.
func (b *bench) runIn(s Status, group string, env ...string) *tenantProgram {
	b.t.Helper()
	cmd := exec.Command("sh", "-c", `echo $$ > "$1/cgroup.procs" && exec "$2"`, "sh", group, filepath.Join(standInDir, "bin", "mps-client"))
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "CUDA_MPS_PIPE_DIRECTORY=" + s.PipeDir}, env...)
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	p := &tenantProgram{in, bufio.NewScanner(out), cmd}
	p.out.Scan()
	return p
}

func (p *tenantProgram) said() string { return p.out.Text() }

func (p *tenantProgram) ask(line string) string {
	_, _ = fmt.Fprintln(p.in, line)
	p.out.Scan()
	return p.out.Text()
}

func (p *tenantProgram) end() { _, _ = p.cmd.Process.Kill(), p.cmd.Wait() }

func TestProtocolIsDetected(t *testing.T) {
	for _, tc := range []struct {
		v       variant
		want    Protocol
		daemon  Protocol
		refused string
	}{
		{newest, ProtocolAuto, ProtocolV2, ""}, {newest, ProtocolV3, 0, "has no protocol 3"},
		{variants[0], ProtocolAuto, ProtocolV2, ""}, {third[0], ProtocolV2, ProtocolV2, ""},
		{third[0], ProtocolAuto, ProtocolV3, ""}, {third[1], ProtocolV3, ProtocolV3, ""},
		{variants[7], ProtocolAuto, ProtocolV2, ""},
	} {
		t.Run(fmt.Sprint(tc.v, " ", tc.want), func(t *testing.T) {
			t.Parallel()
			b := newBenchWith(t, tc.v, false)
			spec := b.spec()
			spec.Protocol, spec.ProtocolReason = tc.want, "it is configured"
			b.Want([]Spec{spec})
			if tc.refused != "" {
				if s := b.until("it is refused", reason(tc.refused)); !strings.Contains(s.Action, "615") {
					t.Errorf("the advice is %q", s.Action)
				}
				return
			}
			if s := b.until("the daemon is ready", ready); s.Protocol != tc.daemon || s.ProtocolReason == "" {
				t.Errorf("the daemon has protocol %d (%s)", s.Protocol, s.ProtocolReason)
			}
		})
	}
}

// A program is in the namespace of its task, whatever it sets, wherever below its task's
// control group it is, and no other program is.
func TestProgramsAreInTheNamespaceOfTheirControlGroup(t *testing.T) {
	withV3(t, func(t *testing.T, b *bench) {
		s := b.wantReady()
		dir, path := group(t, "task-"+b.branch)
		inner, _ := group(t, "task-"+b.branch+"/inner")
		other, _ := group(t, "other-"+b.branch)
		if err := b.v3().Open(t.Context(), gpu.MPSServer, "c1", mpsctl.Limits{MemoryMiB: 2048, Percent: mpsctl.PercentFor(250, s.Multiprocessors)}); err != nil {
			t.Fatal(err)
		}
		if err := mpsctl.PlacesOf(s.ControlDir).Put("c1", path); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			in  string
			env []string
		}{
			{dir, nil},
			{inner, nil},
			{dir, []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=900G", "CUDA_MPS_SM_PARTITION=GPU-x/y"}},
		} {
			p := b.runIn(s, tc.in, tc.env...)
			if a, c, m := p.ask("where"), p.ask("sms"), p.ask("alloc 2049"); a != "c1" || c != "34" || m == "ok" {
				t.Errorf("%v: it is in %q (%s), has %s multiprocessors and gets memory: %s", tc.env, a, p.said(), c, m)
			}
		}
		// No other name leads past the gate.
		for _, dir := range []string{"tasks/c1", "tasks"} {
			p := b.runIn(Status{PipeDir: filepath.Join(s.PipeDir, dir)}, other)
			if !strings.HasPrefix(p.said(), "error") {
				t.Errorf("%s leads to a server: %s", dir, p.said())
			}
		}
	})
}

// tenantIn finds tasks, each with half of the device and 1 GiB: the control groups right below
// one, or that one itself.
func tenantIn(root string) TenantFinder {
	return func(_ string, pid int, group string, multiprocessors int) (Tenant, error) {
		groups, err := cgroup.Of(pid)
		if err != nil || !cgroup.Within(groups, root) {
			return Tenant{}, errors.New("it is of no task")
		}
		task, _, _ := strings.Cut(strings.TrimPrefix(group, root+"/"), "/")
		if task = root + "/" + task; group == root {
			task = root
		}
		return Tenant{Group: task, Limits: mpsctl.Limits{MemoryMiB: 1024, Percent: mpsctl.PercentFor(500, multiprocessors)}}, nil
	}
}

// A task of another driver gets its namespace when its first program comes; a program of no
// task gets none.
func TestTasksOfOtherDriversGetTheirNamespace(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, third[0], false)
	dir, path := group(t, "foreign")
	stranger, _ := group(t, "stranger")
	b.Close()
	b.tenant = tenantIn(path)
	b.start()
	s := b.wantReady()
	p := b.runIn(s, dir)
	if a, c := p.ask("where"), p.ask("sms"); a != gpu.MPSTenantNamespace(path) || c != "66" {
		t.Errorf("%s: it is in %q with %s multiprocessors", p.said(), a, c)
	}
	if q := b.runIn(s, stranger); !strings.HasPrefix(q.said(), "error") {
		t.Errorf("a program of no task: %s", q.said())
	}
	// It goes with the task's last process.
	p.end()
	b.untilNamespaces("default")
	if all, err := mpsctl.PlacesOf(s.ControlDir).All(); err != nil || len(all) > 0 {
		t.Errorf("places are left: %v, %v", all, err)
	}
}

// untilNamespaces waits until the daemon has these namespaces.
func (b *bench) untilNamespaces(want ...string) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		names, err := b.v3().Namespaces(b.t.Context(), gpu.MPSServer)
		if err == nil && strings.Join(names, " ") == strings.Join(want, " ") {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("the namespaces are %v, %v, not %v", names, err, want)
		}
	}
}

// A namespace whose task's driver was killed goes once the leases say that it has no task.
func TestNamespacesOfNoTaskGo(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, third[0], false)
	b.wantReady()
	for _, name := range []string{"c1", "c2"} {
		if err := b.v3().Open(t.Context(), gpu.MPSServer, name, mpsctl.Limits{Percent: 50}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(at time.Time) {
		spec := b.spec()
		spec.Members, spec.MembersAt = []string{"c1"}, at
		b.Want([]Spec{spec})
	}
	want(time.Now().Add(-time.Hour)) // before they were seen
	time.Sleep(300 * time.Millisecond)
	b.untilNamespaces("c1", "c2", "default")
	for range 3 {
		want(time.Now().Add(time.Hour))
	}
	b.untilNamespaces("c1", "default")
}

// Daemon, server or gate may end: a program is in its namespace, or fails.
func TestNoProgramIsOutsideItsNamespaceAfterKills(t *testing.T) {
	rounds := 8
	if os.Getenv("NOMAD_GPU_FULL") != "" {
		rounds = 100
	}
	t.Parallel()
	b := newBenchWith(t, third[1], false)
	dir, path := group(t, "killed")
	for round := range rounds {
		s := b.until("the daemon is ready", func(s Status) bool { b.Want([]Spec{b.spec()}); return s.Ready && s.Generation > int64(round) })
		if all, err := mpsctl.PlacesOf(s.ControlDir).All(); err != nil || len(all) > 0 {
			t.Fatalf("round %d: an earlier daemon's places are left: %v, %v", round, all, err)
		}
		if err := b.v3().Open(t.Context(), gpu.MPSServer, "c1", mpsctl.Limits{Percent: 50}); err != nil {
			t.Fatal(err)
		}
		if err := mpsctl.PlacesOf(s.ControlDir).Put("c1", path); err != nil {
			t.Fatal(err)
		}
		p := b.runIn(s, dir)
		if got := p.ask("where"); got != "c1" {
			t.Fatalf("round %d: %s: it is in %q", round, p.said(), got)
		}
		victim := s.PID
		if round%2 == 1 { // the server, and with it the namespaces
			if victim, _, _ = b.v3().Server(t.Context(), gpu.MPSServer); victim == 0 {
				t.Fatal("there is no server")
			}
		}
		_ = unix.Kill(victim, unix.SIGKILL)
		if where := b.runIn(s, dir).whereIfConnected(); where != "" && where != "c1" {
			t.Errorf("round %d: a program is in %q", round, where)
		}
		p.end()
	}
}

// An occupied device keeps the daemon of v2 until no task is on it, and back.
func TestProtocolChangesWhenNoTaskIsThere(t *testing.T) {
	t.Parallel()
	b := newBenchWith(t, third[0], false)
	for _, change := range []struct{ from, to Protocol }{{ProtocolV2, ProtocolV3}, {ProtocolV3, ProtocolV2}} {
		spec := b.spec()
		spec.Protocol = change.from
		b.Want([]Spec{spec})
		before := b.until("it is ready", func(s Status) bool { return s.Ready && s.Protocol == change.from })
		b.Close() // an upgrade
		b.start()
		spec.Protocol = change.to
		b.Want([]Spec{spec})
		s := b.until("it is adopted", ready)
		if s.PID != before.PID || s.Protocol != change.from || !strings.Contains(s.ProtocolReason, "until it is empty") {
			t.Fatalf("an occupied device has %+v, before %+v", s, before)
		}
		b.until("it is replaced", func(s Status) bool {
			spec.EmptyAt = time.Now()
			b.Want([]Spec{spec})
			return s.Ready && s.Protocol == change.to && s.Generation == before.Generation+1
		})
	}
}
