// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// victimEnv names the file of orders for a test process that plays the plugin
// and dies.
const victimEnv = "NOMAD_GPU_TEST_VICTIM"

// orders tell a victim what to do, and where to die.
type orders struct {
	Config config.Config
	Task   *drivers.TaskConfig
	Driver taskconfig.Config
	Stop   bool
	Exec   []string
	// DieAfter is the step of a start after which it dies, or one of stopSteps.
	DieAfter string
	// Timeout is how long a stop waits before it kills.
	Timeout time.Duration
}

// stopSteps are the moments of a stop: before it, when the task has its signal, when
// it was killed, and before it is destroyed.
var stopSteps = []string{"stopping", "signaled", "killed", "destroying"}

// namesOf are the names of steps.
func namesOf(steps []step) []string {
	var names []string
	for _, s := range steps {
		names = append(names, s.name)
	}
	return names
}

// after makes a driver do something after each step of a start.
func (d *Driver) after(do func(step string)) {
	d.steps = slices.Clone(startSteps)
	for i, s := range startSteps {
		d.steps[i].do = func(st *start, ctx context.Context) error {
			err := s.do(st, ctx)
			if err == nil {
				do(s.name)
			}
			return err
		}
	}
}

// stopUntil does what a stop does, up to one of stopSteps.
func (d *Driver) stopUntil(step, taskID string, timeout time.Duration) error {
	t, err := d.tasks.get(taskID)
	if err != nil {
		return err
	}
	switch step {
	case "signaled":
		return d.signal(t, syscall.SIGTERM, false, awayTimeout)
	case "killed":
		t.killed.Store(true)
		return d.signal(t, syscall.SIGKILL, true, awayTimeout)
	case "destroying":
		return d.StopTask(taskID, timeout, "SIGTERM")
	}
	return nil
}

// victimMain is the process that dies. It exits with 0 when it got through.
func victimMain(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var o orders
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	if err := o.Task.EncodeConcreteDriverConfig(&o.Driver); err != nil {
		return err
	}
	d := New(context.Background(), hclog.NewNullLogger())
	die := func(step string) {
		if step == o.DieAfter {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	d.after(die)
	var data []byte
	if err := base.MsgPackEncode(&data, o.Config); err != nil {
		return err
	}
	if err := d.SetConfig(&base.Config{PluginConfig: data}); err != nil {
		return err
	}
	if !o.Stop && o.Exec == nil {
		_, _, err := d.StartTask(o.Task)
		return err
	}
	handle := drivers.NewTaskHandle(handleVersion)
	handle.Config = o.Task
	if err := d.RecoverTask(handle); err != nil {
		return err
	}
	if o.Exec != nil {
		go func() { _, _ = d.ExecTask(o.Task.ID, o.Exec, time.Hour) }()
		t, err := d.tasks.get(o.Task.ID)
		if err != nil {
			return err
		}
		for {
			running, err := t.container.Sessions(context.Background())
			if err != nil {
				return err
			}
			if running > 0 {
				die("exec")
			}
		}
	}
	if slices.Contains(stopSteps, o.DieAfter) {
		if err := d.stopUntil(o.DieAfter, o.Task.ID, o.Timeout); err != nil {
			return err
		}
		die(o.DieAfter)
	}
	if err := d.StopTask(o.Task.ID, o.Timeout, "SIGTERM"); err != nil {
		return err
	}
	return d.DestroyTask(o.Task.ID, true)
}

// victim runs a process with the orders; it dies by itself, or after the delay
// where there is one, or gets through.
func (e *env) victim(o orders, delay time.Duration) {
	e.t.Helper()
	text, err := json.Marshal(o)
	must.NoError(e.t, err)
	path := filepath.Join(e.t.TempDir(), "orders")
	must.NoError(e.t, os.WriteFile(path, text, 0o600))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+path)
	must.NoError(e.t, cmd.Start())
	if delay > 0 {
		timer := time.AfterFunc(delay, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
	}
	err = cmd.Wait()
	killed := cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled()
	if err != nil && !killed || delay == 0 && !killed {
		e.t.Fatalf("the victim did not die at %q: %v", o.DieAfter, err)
	}
}

// leftovers names everything of this node that exists in containerd, among the
// processes, in the mount table and among the live leases. In a containerd of the
// test's own, that is whatever there is.
func (e *env) leftovers() []string {
	e.t.Helper()
	cl, err := client.New(e.config.Socket, client.WithDefaultNamespace(testNamespace))
	must.NoError(e.t, err)
	defer cl.Close()
	ctx := context.Background()
	var found []string
	var ofNode []string
	if e.containerd.shared {
		ofNode = []string{fmt.Sprintf("labels.%q==%q", record.LabelNode, e.node)}
	}
	containers, err := cl.Containers(ctx, ofNode...)
	must.NoError(e.t, err)
	for _, c := range containers {
		found = append(found, "container "+c.ID())
	}
	must.NoError(e.t, cl.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		// Half an image is containerd's to collect, once its lease has gone.
		if info.Kind == snapshots.KindActive && !strings.Contains(info.Name, "extract-") {
			found = append(found, "snapshot "+info.Name)
		}
		return nil
	}, ofNode...))
	// What containerd itself keeps of a process.
	for _, dir := range []string{"state", "root"} {
		bundles, _ := filepath.Glob(filepath.Join(e.containerd.dir, dir, "io.containerd.runtime.v2.task", testNamespace, "*"))
		for _, bundle := range bundles {
			// Containerd renames one before it removes it, and does not look at it
			// again when it dies in between.
			if e.owns(bundle) && !strings.HasPrefix(filepath.Base(bundle), ".") && !(e.losesShims && e.remade(bundle)) {
				found = append(found, "bundle "+bundle)
			}
		}
	}
	for _, alloc := range e.allocs {
		containers := "*-" + alloc[:8] + "*"
		groups, _ := filepath.Glob(cgroups.Root + "/*/" + testNamespace + "/" + containers)
		if cgroups.Unified() {
			groups, _ = filepath.Glob(cgroups.Root + "/" + testNamespace + "/" + containers)
		}
		for _, dir := range groups {
			found = append(found, "control group "+dir)
		}
		states, _ := filepath.Glob(filepath.Join("/run/containerd/runc", testNamespace, containers))
		for _, state := range states {
			found = append(found, "state "+state)
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, process := range processes {
		line, err := os.ReadFile(process)
		if err == nil && bytes.Contains(line, []byte("containerd-shim")) && bytes.Contains(line, []byte(e.containerd.dir)) && e.owns(string(line)) {
			found = append(found, "shim "+string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	must.NoError(e.t, err)
	for _, line := range strings.Split(string(mounts), "\n") {
		if strings.Contains(line, e.containerd.dir+"/state/io.containerd.runtime") && e.owns(line) || strings.Contains(line, filepath.Join(e.config.StateDir, "stages")) {
			found = append(found, "mount "+line)
		}
	}
	leases, err := e.driver.leases.Started()
	must.NoError(e.t, err)
	for _, l := range leases {
		found = append(found, "lease "+l.ID)
	}
	if sandboxes, err := cl.SandboxStore().List(ctx, ofNode...); err == nil {
		for _, s := range sandboxes {
			found = append(found, "sandbox record "+s.ID)
		}
	}
	return found
}

// remade reports whether containerd removed a bundle, or could not, because a runc
// that had lost its shim wrote there: containerd does not look again.
func (e *env) remade(bundle string) bool {
	log, err := os.ReadFile(filepath.Join(e.containerd.dir, "log"))
	must.NoError(e.t, err)
	if bytes.Contains(log, []byte("failed to remove bundle rootfs: remove "+bundle)) {
		return true
	}
	// The first that containerd puts into a bundle is its specification, and a runc
	// writes others: its log, its PID file.
	_, err = os.Lstat(filepath.Join(bundle, "config.json"))
	return errors.Is(err, fs.ErrNotExist)
}

// owns reports whether a path in the containerd belongs to a task of this test,
// whose allocation is in the container's name.
func (e *env) owns(path string) bool {
	return !e.containerd.shared || slices.ContainsFunc(e.allocs, func(alloc string) bool { return strings.Contains(path, "-"+alloc[:8]) })
}

// killStart lets a start die, does what Nomad does then, and checks that there
// is one task, with its lease and its exit code, and nothing afterwards.
func (e *env) killStart(step string, delay time.Duration) {
	e.t.Helper()
	config := defaultTaskConfig("sh", "-c", trap)
	cfg := e.task(config, reserve(gpuA, 0, 1))
	e.victim(orders{Config: e.config, Task: cfg, Driver: config, DieAfter: step}, delay)
	e.startDriver()
	e.start(cfg)
	must.Eq(e.t, 1, e.running())
	lease, err := e.driver.state.Lease(gpu.LeaseID(cfg.AllocID, cfg.Name))
	must.NoError(e.t, err)
	must.Eq(e.t, gpu.PhaseRunning, lease.Phase)
	// The log may hold the first attempt's word; so the signal is repeated until
	// the task is ready for it.
	e.waitForLog(cfg, "ready")
	eventually(e.t, "the task ends", func() bool {
		_ = e.harness.SignalTask(cfg.ID, "SIGUSR1")
		status, err := e.harness.InspectTask(cfg.ID)
		return err == nil && status.State == drivers.TaskStateExited
	})
	must.Eq(e.t, 42, e.wait(cfg.ID).ExitCode)
	must.NoError(e.t, e.harness.DestroyTask(cfg.ID, true))
	e.nothingLeft()
}

// running counts the containers of this node that have a process. A record whose
// making was under way when its driver died may come late; it is the reaper's.
func (e *env) running() int {
	e.t.Helper()
	ctx, count := context.Background(), 0
	for _, id := range e.containers() {
		if c, err := e.driver.runtime.Load(ctx, id); err == nil {
			if status, err := c.Status(ctx); err == nil && status.Running {
				count++
			}
		}
	}
	return count
}

// nothingLeft checks that, once containerd has given up what died with its
// caller, nothing of this node is left.
func (e *env) nothingLeft() {
	e.t.Helper()
	// Records without a container are the reaper's.
	e.reapAll()
	var found []string
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if found = e.leftovers(); len(found) == 0 {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	must.Eq(e.t, nil, found, must.Sprint(e.containerd.says(e.allocs)))
}

// says returns what containerd logged about the last of the allocations.
func (c *containerd) says(allocs []string) string {
	text, _ := os.ReadFile(filepath.Join(c.dir, "log"))
	var said []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "-"+allocs[len(allocs)-1][:8]) {
			said = append(said, line)
		}
	}
	return "containerd says:\n" + strings.Join(said, "")
}

// killStop lets a stop die, and checks that the task's end is reported all the
// same.
func (e *env) killStop(step string, delay time.Duration) {
	e.t.Helper()
	// A task that heeds the signal, and one that must be killed.
	script, code, timeout := trap, 43, 10*time.Second
	if step == "killed" {
		timeout = 50 * time.Millisecond
		script, code = "trap '' TERM; echo ready; while true; do sleep 0.05; done", 137
	}
	config := defaultTaskConfig("sh", "-c", script)
	cfg := e.task(config, reserve(gpuA, 0, 1))
	handle := e.start(cfg)
	e.waitForLog(cfg, "ready")
	e.driver.Shutdown()
	e.victim(orders{Config: e.config, Task: cfg, Driver: config, Stop: true, DieAfter: step, Timeout: timeout}, delay)
	e.startDriver()
	if err := e.harness.RecoverTask(handle); err != nil {
		// The stop was over, and its container removed. Nomad destroys then.
		must.ErrorContains(e.t, err, "not found")
		must.Greater(e.t, 0, delay, must.Sprint("a task was lost"))
		_ = e.harness.DestroyTask(cfg.ID, true)
	} else {
		must.NoError(e.t, e.harness.StopTask(cfg.ID, 10*time.Second, "SIGTERM"))
		got := e.wait(cfg.ID).ExitCode
		// Cut off at a random moment, the victim may have killed it already.
		if got != code && (delay == 0 || got != 137) {
			e.t.Fatalf("exit code %d, want %d", got, code)
		}
		must.NoError(e.t, e.harness.DestroyTask(cfg.ID, true))
	}
	e.nothingLeft()
}

func TestKillAtEachStep(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		for _, step := range drawnFrom(e, slices.Concat(namesOf(startSteps), stopSteps)) {
			if slices.Contains(stopSteps, step) {
				e.killStop(step, 0)
			} else {
				e.killStart(step, 0)
			}
		}
	})
}

func TestKilledStartsThatNobodyRepeatsAreReaped(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		for i, step := range namesOf(startSteps) {
			config := defaultTaskConfig("sleep", "1000")
			cfg := e.quietTask(config, reserve(gpuA, i)) // what is left holds its devices
			e.victim(orders{Config: e.config, Task: cfg, Driver: config, DieAfter: step}, 0)
		}
		e.startDriver()
		e.nothingLeft()
	})
}

// reapAll tidies up, and checks that no lease of this node stays in containerd.
func (e *env) reapAll() {
	e.t.Helper()
	e.tidy(time.Hour)
	plain, err := client.New(e.config.Socket, client.WithDefaultNamespace(testNamespace))
	must.NoError(e.t, err)
	defer plain.Close()
	var ofNode []string
	if e.containerd.shared {
		ofNode = []string{fmt.Sprintf("labels.%q==%q", "io.nomad-gpu.owner", e.config.StateDir)}
	}
	leases, err := plain.LeasesService().List(context.Background(), ofNode...)
	must.NoError(e.t, err)
	must.Len(e.t, 0, leases)
}

// kills is how often a test kills at random, per containerd: NOMAD_GPU_KILLS, or a
// number that keeps the suite short.
func kills(few int) int {
	if everything() {
		few *= 4
	}
	if n, err := strconv.Atoi(os.Getenv("NOMAD_GPU_KILLS")); err == nil {
		return n
	}
	return few
}

// TestKillAtRandom kills the driver in starts and stops at random moments.
func TestKillAtRandom(t *testing.T) {
	rounds := kills(4)
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		for i := range rounds {
			// A process of this size needs some 60 ms before it does anything.
			delay := 60*time.Millisecond + time.Duration(rand.IntN(300))*time.Millisecond
			if i%2 == 0 {
				e.killStart("", delay)
			} else {
				e.killStop("", delay)
			}
		}
		e.nothingLeft()
		fmt.Fprintf(os.Stderr, "killed %d times at random, nothing lost, doubled or left\n", rounds)
	})
}
