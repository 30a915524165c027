// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// v3 is a daemon of a branch with MPS v3.
type v3 struct {
	*talk
	mpsctl.V3
	client string
}

func newV3(t *testing.T, branch string) *v3 {
	t.Helper()
	program, server := standIn(t, branch)
	w := &v3{talk: newTalk(t, program, server), client: filepath.Join(filepath.Dir(server), "mps-client")}
	if out, err := exec.Command("go", "build", "-o", w.client, "../mps-client").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.V3 = mpsctl.V3{Control: mpsctl.Control{Program: program, PipeDir: w.pipe, Env: w.env, Timeout: time.Minute}}
	t.Cleanup(func() { _, _ = w.Do(context.WithoutCancel(t.Context()), "-q") })
	return w
}

// begin starts the daemon with a configuration, and returns why it did not start.
func (w *v3) begin(config string, options ...string) error {
	w.t.Helper()
	args := append([]string{"-d", "-p", "3"}, options...)
	if config != "" {
		file := filepath.Join(w.t.TempDir(), "mps.toml")
		if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
			w.t.Fatal(err)
		}
		args = append(args, "-a", file)
	}
	cmd := exec.Command(w.program, args...)
	cmd.Env = w.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return errors.New(string(out))
	}
	return nil
}

// program3 is a program under the daemon.
type program3 struct {
	in  io.Writer
	out *bufio.Scanner
	cmd *exec.Cmd
}

func (w *v3) run3(dir string, env ...string) *program3 {
	w.t.Helper()
	cmd := exec.Command(w.client)
	cmd.Env = append(env, "CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(w.pipe, dir))
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	p := &program3{in, bufio.NewScanner(out), cmd}
	p.out.Scan()
	return p
}

func (p *program3) ask(line string) string {
	fmt.Fprintln(p.in, line)
	p.out.Scan()
	return p.out.Text()
}

// The configuration of NVIDIA's page, on one device, and what it refuses.
func TestConfigurationOfMPSv3IsStrict(t *testing.T) {
	const page615 = `schema_version = "1.0"
[servers.training]
allowed_devices = "GPU-0"
pinned_memory_limit = "10G"
active_thread_percentage = "50"
client_priority = "0"
uid = 0
locality_domains = false
[servers.training.namespaces.high_priority]
pinned_memory_limit = "5G"
active_thread_percentage = "25"
[[servers.training.devices]]
uuid = "GPU-0"
  [[servers.training.devices.sm_partitions]]
  name = "large"
  chunks = 4
  include_remainder = false
[features.memacct]
enabled = true
`
	const page620 = `schema_version = "1.0"
[compute_policy]
timeslice = "long"
[servers.training]
timeslice_pct = "50"
[servers.training.namespaces.a]
cgroup = "/sys/fs/cgroup/training"
cgroup_depth = 1
[[servers.training.namespaces.a.devices]]
uuid = "GPU-0"
sm_partition = "large"
[[servers.training.devices]]
uuid = "GPU-0"
  [[servers.training.devices.sm_partitions]]
  name = "large"
  chunks = 4
  shareable = true
  max_chunks = 6
`
	branches := map[string]*v3{"615": newV3(t, "615"), "620": newV3(t, "620")}
	for _, tc := range []struct{ branch, config, refused string }{
		{"615", page615, ""}, {"620", page615, ""}, {"620", page620, ""},
		{"615", page620, `unknown key "compute_policy"`},
		{"615", strings.Replace(page620, "[compute_policy]\ntimeslice = \"long\"\n", "", 1), `servers.training: unknown key "timeslice_pct"`},
		{"615", strings.Replace(page615, "chunks = 4", "chunks = 4\n  max_chunks = 6", 1), `unknown key "max_chunks"`},
		{"615", strings.Replace(page615, "[features", "cgroup = \"/a\"\n[features", 1), `unknown key "cgroup"`},
		{"620", strings.Replace(page615, "uid = 0", "user = 0", 1), `unknown key "user"`},
		{"620", strings.Replace(page615, `schema_version = "1.0"`, "", 1), `schema_version ""`},
		{"620", strings.Replace(page615, "chunks = 4", "chunks = 17", 1), "not enough free chunks"},
		{"620", strings.Replace(page615, `"25"`, `"125"`, 1), "not from 1 to 100"},
		{"620", strings.Replace(page615, `active_thread_percentage = "25"`, "active_thread_percentage = 25", 1), "is of another type"},
		{"620", strings.Replace(page615, "high_priority", "High-Priority", 1), "invalid namespace name"},
	} {
		w := branches[tc.branch]
		err := w.begin(tc.config)
		_, _ = w.Do(t.Context(), "-q")
		w.untilEnded()
		if tc.refused == "" && err != nil || tc.refused != "" && (err == nil || !strings.Contains(err.Error(), tc.refused)) {
			t.Errorf("%s, %q: %v", tc.branch, tc.refused, err)
		}
	}
}

func TestNamespacesHoldTheirClients(t *testing.T) {
	w := newV3(t, "615")
	if found, err := mpsctl.Detect(t.Context(), w.program, w.Control); err != nil || !found {
		t.Fatalf("it has no protocol 3: %v", err)
	}
	if err := w.begin("schema_version = \"1.0\"\n[servers.tasks]\nallowed_devices = \"GPU-0\"\nactive_thread_percentage = \"1\"\n", "-m"); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if pid, state, err := w.Server(ctx, "tasks"); err != nil || pid == 0 || state != "Ready" {
		t.Fatalf("the server is %d, %q, %v", pid, state, err)
	}
	if m, c, err := w.Multiprocessors(ctx); err != nil || m != 132 || c != 16 {
		t.Errorf("%d multiprocessors, %d chunks, %v", m, c, err)
	}
	limits := mpsctl.Limits{MemoryMiB: 2048, Percent: 25}
	for range 2 { // what is there is left as it is
		if err := w.Open(ctx, "tasks", "a", limits); err != nil {
			t.Fatal(err)
		}
	}
	p := w.run3("tasks/a")
	for line, want := range map[string]string{"where": "a", "sms": "32", "alloc 2049": "CUDA_ERROR_OUT_OF_MEMORY", "alloc 2048": "ok"} {
		if got := p.ask(line); got != want {
			t.Errorf("%s: %q, not %q", line, got, want)
		}
	}
	if got := w.run3("tasks").ask("sms"); got != "0" {
		t.Errorf("the default namespace gives %s multiprocessors", got)
	}
	// A client's own limits can lower, and one that names another device lifts them all.
	low := w.run3("tasks/a", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G")
	if a, b := low.ask("alloc 1025"), low.ask("alloc 1024"); a == "ok" || b != "ok" {
		t.Errorf("with a limit of 1G: %q, %q", a, b)
	}
	if got := w.run3("tasks/a", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,1=1G").ask("alloc 90000"); got != "ok" {
		t.Errorf("with a limit of another device: %q", got)
	}
	all, err := w.Programs(ctx, "tasks")
	if err != nil || len(all) != 4 || !slices.Contains(all, mpsctl.Client{PID: p.cmd.Process.Pid, Namespace: "a"}) {
		t.Errorf("the clients are %+v, %v", all, err)
	}
	// While there are clients it stays as it is.
	for what, err := range map[string]error{"limit": w.Limit(ctx, "tasks", "a", mpsctl.Limits{MemoryMiB: 4096, Percent: 50}), "close": w.Close(ctx, "tasks", "a")} {
		if !errors.Is(err, mpsctl.ErrInUse) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := w.End(ctx, p.cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if got := p.ask("where"); !strings.HasPrefix(got, "error") {
		t.Errorf("a client that was terminated gets %q", got)
	}
	// Who is not the server's owner changes nothing.
	nobody := exec.Command(w.program, "namespace", "set", "a", "--server=tasks", "--active-thread-percentage=100")
	nobody.Env, nobody.SysProcAttr = w.env, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 60000, Gid: 60000}}
	if err := errors.Join(os.Chmod(filepath.Dir(w.pipe), 0o755), os.Chmod(filepath.Dir(filepath.Dir(w.program)), 0o755), os.Chmod(filepath.Dir(filepath.Dir(filepath.Dir(w.program))), 0o755)); err != nil {
		t.Fatal(err)
	}
	if out, err := nobody.CombinedOutput(); err == nil || !strings.Contains(string(out), "Insufficient privileges for UID 60000. 'NAMESPACE SET' requires server owner.") {
		t.Errorf("another user: %q, %v", out, err)
	}
}

// What r620 has beside r615.
func TestControlGroupsChooseTheNamespace(t *testing.T) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip(err)
	}
	path := ""
	for line := range strings.Lines(string(own)) {
		if p := strings.TrimSpace(line[strings.LastIndexByte(line, ':')+1:]); len(p) > len(path) {
			path = p
		}
	}
	if len(path) < 2 {
		t.Skip("this process is in no control group of its own")
	}
	w := newV3(t, "620")
	if err := w.begin(fmt.Sprintf("schema_version = \"1.0\"\n[servers.tasks]\n[servers.tasks.namespaces.a]\ncgroup = \"/sys/fs/cgroup%s\"\n", path), "-m"); err != nil {
		t.Fatal(err)
	}
	if got := w.run3("").ask("where"); got != "a" {
		t.Errorf("a client of its control group is in %q", got)
	}
	_, _ = w.Do(t.Context(), "-q")
	w.untilEnded()
	old := newV3(t, "615")
	if err := old.begin("", "-m"); err != nil {
		t.Fatal(err)
	}
	if got := old.run3("").ask("where"); got != "default" {
		t.Errorf("on 615 it is in %q", got)
	}
	if pid, _, err := old.Server(t.Context(), "uid_0"); err != nil || pid == 0 {
		t.Errorf("it is not served by its user's server: %v", err)
	}
}

// A server that may use no GPU of the machine is not listed.
func TestServerOfAnotherGPUIsGone(t *testing.T) {
	w := newV3(t, "615")
	if err := w.begin("schema_version = \"1.0\"\n[servers.tasks]\nallowed_devices = \"GPU-7\"\n", "-m"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		if pid, _, err := w.Server(t.Context(), "tasks"); err != nil || pid == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("it is still listed")
		}
	}
}
