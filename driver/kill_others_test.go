// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// afterStep makes the driver do something once, after a step of a start.
func (e *env) afterStep(step string, do func()) {
	var once sync.Once
	e.driver.after(func(now string) {
		if now == step {
			once.Do(do)
		}
	})
}

// crash kills containerd and starts it again while the driver goes on.
func (e *env) crash() {
	e.containerd.kill()
	e.t.Cleanup(e.containerd.restarts.Wait)
	e.containerd.restarts.Go(func() {
		if err := e.containerd.run(); err != nil {
			e.t.Errorf("start containerd again: %v", err)
		}
	})
}

// nomadStarts starts a task as Nomad does: what fails for a reason that passes is
// tried again, as another invocation.
func (e *env) nomadStarts(cfg *drivers.TaskConfig) *drivers.TaskConfig {
	e.t.Helper()
	_, _, err := e.harness.StartTask(cfg)
	for until := time.Now().Add(patience); err != nil && time.Now().Before(until); {
		must.True(e.t, structs.IsRecoverable(err), must.Sprint(err))
		_ = e.harness.DestroyTask(cfg.ID, true)
		e.waitForContainerd()
		time.Sleep(100 * time.Millisecond) // Nomad waits for longer
		cfg = cfg.Copy()
		cfg.ID = cfg.AllocID + "/web/" + uuid.Short()
		_, _, err = e.harness.StartTask(cfg)
	}
	must.NoError(e.t, err)
	e.t.Cleanup(func() { _ = e.driver.DestroyTask(cfg.ID, true) })
	return cfg
}

// waitForContainerd waits until the driver reaches containerd.
func (e *env) waitForContainerd() {
	e.t.Helper()
	eventually(e.t, "containerd answers", func() bool {
		_, err := e.driver.runtime.Version(context.Background())
		return err == nil
	})
}

// nomadStops stops and destroys a task as Nomad does, which asks again when a
// stop fails.
func (e *env) nomadStops(cfg *drivers.TaskConfig, timeout time.Duration) *drivers.ExitResult {
	e.t.Helper()
	stop := func() error { return e.harness.StopTask(cfg.ID, timeout, "SIGTERM") }
	must.Wait(e.t, wait.InitialSuccess(wait.ErrorFunc(stop), wait.Timeout(patience)),
		must.Func(func() string { return e.containerd.says(e.allocs) }))
	result := e.wait(cfg.ID)
	// It asks once here; the reaper does the rest.
	_ = e.harness.DestroyTask(cfg.ID, true)
	return result
}

func TestContainerdKilledAtEachStep(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		for _, step := range drawnFrom(e, slices.Concat(namesOf(startSteps), stopSteps)) {
			// A task that heeds the signal, and one that must be killed.
			trap, code, timeout := "exit 43", 43, 10*time.Second
			if step == "killed" {
				trap, code, timeout = "", 137, 50*time.Millisecond
			}
			cfg := e.quietTask(defaultTaskConfig("sh", "-c", "trap '"+trap+"' TERM; touch /local/ready; while true; do sleep 0.05; done"), reserve(gpuA, 0))
			e.afterStep(step, e.crash)
			cfg = e.nomadStarts(cfg)
			e.waitUntilReady(cfg)
			if slices.Contains(stopSteps, step) {
				must.NoError(t, e.driver.stopUntil(step, cfg.ID, timeout))
				e.crash()
			}
			result := e.nomadStops(cfg, timeout)
			must.NoError(t, result.Err, must.Sprint(step))
			must.Eq(t, code, result.ExitCode, must.Sprint(step))
			e.containerd.restarts.Wait()
			e.waitForContainerd()
			e.nothingLeft()
		}
	})
}

func TestShimKilledAtEachStep(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		e.losesShims = true
		for _, step := range slices.Concat([]string{"run", "watch"}, stopSteps) {
			cfg := e.quietTask(defaultTaskConfig("sh", "-c", stubborn), reserve(gpuA, 0))
			killShim := func() {
				if pid := findShim(cfg); pid == 0 || syscall.Kill(pid, syscall.SIGKILL) != nil {
					t.Errorf("the shim is not killed at %q", step)
				}
			}
			e.afterStep(step, killShim)
			_, _, err := e.harness.StartTask(cfg)
			must.NoError(t, err, must.Sprint(step))
			if slices.Contains(stopSteps, step) {
				e.waitUntilReady(cfg)
				must.NoError(t, e.driver.stopUntil(step, cfg.ID, 200*time.Millisecond))
				killShim()
			}
			must.NoError(t, e.harness.StopTask(cfg.ID, 200*time.Millisecond, "SIGTERM"), must.Sprint(step))
			must.Eq(t, 137, e.wait(cfg.ID).ExitCode, must.Sprint(step))
			_ = e.harness.DestroyTask(cfg.ID, true)
			e.nothingLeft()
		}
	})
}

// stubborn is a task that only a kill ends, once it is ready: before, a signal
// meets the OCI runtime that becomes the task.
const stubborn = "trap '' TERM; touch /local/ready; while true; do sleep 0.05; done"

func (e *env) waitUntilReady(cfg *drivers.TaskConfig) {
	e.t.Helper()
	eventually(e.t, "the task is ready", func() bool { return fileExists(filepath.Join(cfg.TaskDir().LocalDir, "ready")) })
}

// beside does something at a random moment while the test does another thing,
// and waits for both.
func beside(do, other func()) {
	done := make(chan struct{})
	time.AfterFunc(time.Duration(rand.IntN(400))*time.Millisecond, func() {
		defer close(done)
		do()
	})
	other()
	<-done
}

// TestContainerdKilledAtRandom kills containerd while tasks start and stop.
func TestContainerdKilledAtRandom(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		// A containerd 1.6 that dies while it unpacks an image may refuse to go on
		// with it; here the image is there.
		e.run(defaultTaskConfig("true"))
		for range kills(2) {
			cfg := e.quietTask(defaultTaskConfig("sh", "-c", stubborn), reserve(gpuA, 0))
			var started *drivers.TaskConfig
			beside(func() { e.crash() }, func() { started = e.nomadStarts(cfg) })
			e.containerd.restarts.Wait()
			e.waitForContainerd()
			must.Len(t, 1, e.containers())
			e.waitUntilReady(started)
			beside(func() { e.crash() }, func() {
				result := e.nomadStops(started, 50*time.Millisecond)
				must.NoError(t, result.Err)
				must.Eq(t, 137, result.ExitCode)
			})
			e.containerd.restarts.Wait()
			e.waitForContainerd()
			e.nothingLeft()
		}
	})
}

// TestShimKilledAtRandom kills a task's shim while the task starts, when the shim
// has begun to do so. The start fails for a reason that passes, or the task is lost;
// the next one runs.
func TestShimKilledAtRandom(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		e.losesShims = true
		kill := atomic.Int32{}
		for range kills(10) {
			cfg := e.quietTask(defaultTaskConfig("sh", "-c", stubborn), reserve(gpuA, 0))
			over := make(chan struct{})
			killed := make(chan struct{})
			go func() {
				defer close(killed)
				for pid := 0; ; pid = findShim(cfg) {
					select {
					case <-over:
						return
					case <-time.After(time.Duration(rand.IntN(50)) * time.Millisecond):
					}
					if pid != 0 && syscall.Kill(pid, syscall.SIGKILL) == nil {
						kill.Add(1)
						return
					}
				}
			}()
			_, _, started := e.harness.StartTask(cfg)
			close(over)
			<-killed
			if started == nil {
				must.NoError(t, e.harness.StopTask(cfg.ID, time.Minute, "SIGKILL"))
				must.Eq(t, 137, e.wait(cfg.ID).ExitCode)
				_ = e.harness.DestroyTask(cfg.ID, true)
			} else {
				must.True(t, structs.IsRecoverable(started), must.Sprint(started))
			}
			e.nothingLeft()
		}
		must.Positive(t, kill.Load())
	})
}

// pretender is a process that looks like another by its command line.
type pretender struct {
	*boundProcess
	stdin io.Closer
}

// pretend runs a process until it is told to end, or the test ends.
func pretend(t *testing.T, name string, args ...string) pretender {
	t.Helper()
	cmd := &exec.Cmd{Path: "/bin/sh", Args: append([]string{name, "-c", "read line; :"}, args...)}
	stdin, err := cmd.StdinPipe()
	must.NoError(t, err)
	p, err := startBound(cmd)
	must.NoError(t, err)
	t.Cleanup(p.kill)
	return pretender{p, stdin}
}

// ends tells the process to end, and reports whether it did that by itself.
func (p pretender) ends() bool {
	_ = p.stdin.Close()
	<-p.ended
	return p.cmd.ProcessState.Exited()
}

// TestShimsWithoutAContainerAreKilled: containerd forgets a shim when it dies while
// it starts it.
func TestShimsWithoutAContainerAreKilled(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		running := e.start(e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0))).Config
		const shim = "/usr/bin/containerd-shim-runc-v2"
		gone := record.NewID(running)
		forgotten := pretend(t, shim, "-namespace", testNamespace, "-id", gone, "-address", e.containerd.socket())
		others := map[string]pretender{
			"of another containerd":       pretend(t, shim, "-namespace", testNamespace, "-id", gone, "-address", "/run/other.sock"),
			"of another namespace":        pretend(t, shim, "-namespace", "other", "-id", gone, "-address", e.containerd.socket()),
			"of another owner":            pretend(t, shim, "-namespace", testNamespace, "-id", "gone", "-address", e.containerd.socket()),
			"that says it is a directory": pretend(t, shim, "-namespace", testNamespace, "-id", "../..", "-address", e.containerd.socket()),
			"that cleans up":              pretend(t, shim, "-namespace", testNamespace, "-id", gone, "-address", e.containerd.socket(), "delete"),
		}
		must.NoError(t, e.driver.runtime.CollectLeftovers(context.Background(), record.IDs, time.Now().Add(-time.Hour)))
		must.False(t, processGone(forgotten.cmd.Process.Pid), must.Sprint("it is young"))
		must.NoError(t, e.driver.runtime.CollectLeftovers(context.Background(), record.IDs, time.Now().Add(time.Hour)))
		<-forgotten.ended
		must.False(t, forgotten.ends())
		for which, p := range others {
			must.True(t, p.ends(), must.Sprint("a shim ", which, " was killed"))
		}
		must.False(t, processGone(shimOf(t, running)), must.Sprint("a task's shim was killed"))
	})
}

// TestAllOfATaskIsDeadBeforeItsLeaseEnds: containerd does not know of every process
// in the container's control group.
func TestAllOfATaskIsDeadBeforeItsLeaseEnds(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		for want, end := range map[int]func(*drivers.TaskConfig) error{
			137: func(cfg *drivers.TaskConfig) error { return syscall.Kill(shimOf(t, cfg), syscall.SIGKILL) },
			5: func(cfg *drivers.TaskConfig) error {
				return os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "go"), nil, 0o644)
			},
		} {
			cfg := e.quietTask(defaultTaskConfig("sh", "-c", "while [ ! -e /local/go ]; do sleep 0.05; done; exit 5"), reserve(gpuA, 0))
			e.start(cfg)
			lease, err := e.driver.state.Lease(gpu.LeaseID(cfg.AllocID, cfg.Name))
			must.NoError(t, err)
			survivor := pretend(t, "sh")
			dirs, err := cgroups.Dirs(lease.Cgroup, cgroups.Unified())
			must.NoError(t, err)
			for _, dir := range dirs {
				must.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(itoa(survivor.cmd.Process.Pid)), 0))
			}
			must.NoError(t, end(cfg))
			must.Eq(t, want, e.wait(cfg.ID).ExitCode)
			must.True(t, processGone(survivor.cmd.Process.Pid))
			must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// leaveDirectory puts a directory where containerd makes its next snapshot, as it
// does when it dies while it makes one.
func (e *env) leaveDirectory() {
	e.t.Helper()
	cl, err := client.New(e.config.Socket, client.WithDefaultNamespace(testNamespace))
	must.NoError(e.t, err)
	defer cl.Close()
	ctx := context.Background()
	service := cl.SnapshotService("overlayfs")
	mounts, err := service.Prepare(ctx, "probe", "", snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "now"}))
	must.NoError(e.t, err)
	must.NoError(e.t, service.Remove(ctx, "probe"))
	// Now it has no other reason to look for such directories.
	lease, err := cl.LeasesService().Create(ctx, leases.WithRandomID())
	must.NoError(e.t, err)
	must.NoError(e.t, cl.LeasesService().Delete(ctx, lease, leases.SynchronousDelete))
	last := filepath.Dir(mounts[0].Source) // of …/snapshots/<number>/fs
	eventually(e.t, "the last snapshot is removed", func() bool { return !fileExists(last) })
	number, err := strconv.Atoi(filepath.Base(last))
	must.NoError(e.t, err)
	must.NoError(e.t, os.MkdirAll(filepath.Join(filepath.Dir(last), itoa(number+1), "fs"), 0o755))
}

func TestContainerdThatLeftASnapshot(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		for _, next := range []string{"the image's layer", "the container's snapshot"} {
			e.leaveDirectory()
			_, result := e.run(defaultTaskConfig("true"))
			must.Eq(t, 0, result.ExitCode, must.Sprint(next))
		}
	})
}

// firstProcess is the first process in a task's control group, also while containerd
// is away.
func firstProcess(t *testing.T, cfg *drivers.TaskConfig) int {
	t.Helper()
	for _, pattern := range []string{cgroups.Root + "/*/" + testNamespace + "/*", cgroups.Root + "/*/*/*"} {
		dirs, _ := filepath.Glob(pattern + "-" + cfg.AllocID[:8] + "*")
		if pids, err := cgroups.Processes(dirs); err == nil && len(firstsOf(pids)) == 1 {
			return firstsOf(pids)[0]
		}
	}
	t.Fatal("the task has no process")
	return 0
}

// firstsOf are those processes that are number 1 in their containers. They need not have the least
// numbers on the host, where numbers begin again from the lowest.
func firstsOf(pids []int) []int {
	return slices.DeleteFunc(slices.Clone(pids), func(pid int) bool {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, line, _ := strings.Cut(string(status), "\nNSpid:")
		line, _, _ = strings.Cut(line, "\n")
		numbers := strings.Fields(line)
		return len(numbers) < 2 || numbers[len(numbers)-1] != "1"
	})
}
