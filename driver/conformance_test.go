// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// The tests called TestConformance_… are the behaviors that users of Nomad's
// exec, docker and podman drivers rely on, under the names that those drivers'
// tests have. They lie beside what they are about: here how a task lives and
// ends, elsewhere its image, its files, its limits and its network. The list in
// docs/design/driver-tests.md names them all.

func TestConformance_Start_Wait(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", "echo hello; exit 7"))
		e.start(cfg)
		result := e.wait(cfg.ID)
		must.Eq(t, 7, result.ExitCode)
		must.NoError(t, result.Err)
		must.Eq(t, "hello\n", e.logs(cfg, "stdout"))
	})
}

func TestConformance_Start_Kill_Wait(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		must.NoError(t, e.harness.StopTask(cfg.ID, 10*time.Second, "SIGKILL"))
		result := e.wait(cfg.ID)
		must.Eq(t, 137, result.ExitCode)
		must.Eq(t, 9, result.Signal)
		must.False(t, result.OOMKilled)
		must.ErrorContains(t, e.harness.SignalTask("no-such-task", "SIGHUP"), "not found")
	})
}

func TestConformance_Start_KillTimeout(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", `trap '' TERM; echo ready; while true; do sleep 0.05; done`))
		e.start(cfg)
		e.waitForLog(cfg, "ready")
		must.NoError(t, e.harness.StopTask(cfg.ID, 300*time.Millisecond, "SIGTERM"))
		must.Eq(t, 137, e.wait(cfg.ID).ExitCode)
	})
}

func TestConformance_StopSignal(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		for signal, code := range map[string]int{"SIGUSR1": 42, "": 43} {
			cfg := e.task(defaultTaskConfig("sh", "-c", trap))
			e.start(cfg)
			e.waitForLog(cfg, "ready")
			began := time.Now()
			must.NoError(t, e.harness.StopTask(cfg.ID, patience, signal))
			must.Less(t, patience, time.Since(began), must.Sprint("the kill timeout was slept in full"))
			must.Eq(t, code, e.wait(cfg.ID).ExitCode)
		}
		must.ErrorContains(t, func() error {
			cfg := e.task(defaultTaskConfig("sleep", "1000"))
			e.start(cfg)
			return e.harness.StopTask(cfg.ID, time.Second, "SIGNONSENSE")
		}(), "SIGNONSENSE")
	})
}

func TestConformance_Start_StoppedContainer(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("true"))
		e.start(cfg)
		must.Eq(t, 0, e.wait(cfg.ID).ExitCode)
		// Nomad restarts in place: a new invocation of the same task.
		must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
		again := cfg.Copy()
		again.ID = cfg.AllocID + "/web/" + uuid.Short()
		e.start(again)
		must.Eq(t, 0, e.wait(again.ID).ExitCode)
		must.Len(t, 1, e.containers())
	})
}

func TestConformance_ContainerAlreadyExists(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		pid := e.pid(cfg)
		e.restart()
		again := cfg.Copy()
		again.ID = cfg.AllocID + "/web/" + uuid.Short()
		e.start(again)
		must.Len(t, 1, e.containers())
		must.True(t, processGone(pid))
	})
}

func TestConformance_CreationIdempotent(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", "echo ran; while [ ! -e /local/go ]; do sleep 0.02; done; exit 8"))
		e.start(cfg)
		pid := e.pid(cfg)
		// The driver died before Nomad heard of the start, and is asked again.
		e.restart()
		e.start(cfg)
		must.Eq(t, pid, e.pid(cfg), must.Sprint("the task was started twice"))
		// It dies once more, and the task ends before it is asked.
		e.driver.Shutdown()
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "go"), nil, 0o644))
		eventually(t, "the process has ended", func() bool { return processGone(pid) })
		e.startDriver()
		e.start(cfg)
		must.Eq(t, 8, e.wait(cfg.ID).ExitCode)
		must.Eq(t, "ran\n", e.logs(cfg, "stdout"))
		must.Len(t, 0, e.containers())
	})
}

func TestConformance_StartN(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		var ids []string
		for range 3 {
			cfg := e.task(defaultTaskConfig("sleep", "1000"))
			e.start(cfg)
			ids = append(ids, cfg.ID)
		}
		for _, id := range ids {
			must.NoError(t, e.harness.DestroyTask(id, true))
		}
		must.Len(t, 0, e.containers())
	})
}

func TestConformance_StartWaitRecoverWaitStop(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		cfg := e.task(defaultTaskConfig("sh", "-c", trap), reserve(gpuA, 0, 1))
		handle := e.start(cfg)
		e.waitForLog(cfg, "ready")
		before, err := e.driver.state.Lease(gpu.LeaseID(cfg.AllocID, cfg.Name))
		must.NoError(t, err)
		must.Eq(t, gpu.PhaseRunning, before.Phase)
		must.NoError(t, os.RemoveAll(e.config.StateDir+"/leases"))

		e.restart()
		must.NoError(t, e.harness.RecoverTask(handle))
		must.NoError(t, e.harness.RecoverTask(handle))
		after, err := e.driver.state.Lease(before.ID)
		must.NoError(t, err)
		must.Eq(t, before, after)
		status, err := e.harness.InspectTask(cfg.ID)
		must.NoError(t, err)
		must.Eq(t, drivers.TaskStateRunning, status.State)
		must.NoError(t, e.harness.SignalTask(cfg.ID, "SIGUSR1"))
		must.Eq(t, 42, e.wait(cfg.ID).ExitCode)
		must.StrContains(t, e.logs(cfg, "stdout"), "got it")
		must.Len(t, 0, e.containers())
	})
}

func TestConformance_RecoverTask(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		cfg := e.task(defaultTaskConfig("sh", "-c", "while [ ! -e /local/go ]; do sleep 0.02; done; exit 9"), reserve(gpuA, 0))
		handle := e.start(cfg)
		pid := e.pid(cfg)
		e.driver.Shutdown()
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "go"), nil, 0o644))
		eventually(t, "the process has ended", func() bool { return processGone(pid) })
		e.startDriver()
		must.NoError(t, e.harness.RecoverTask(handle))
		must.Eq(t, 9, e.wait(cfg.ID).ExitCode)
		lease, err := e.driver.state.Lease(gpu.LeaseID(cfg.AllocID, cfg.Name))
		must.NoError(t, err)
		must.Eq(t, gpu.PhaseEnded, lease.Phase)
	})
}

func TestConformance_DanglingContainerRemoval(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		cfg := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0))
		e.start(cfg)
		kept := e.task(defaultTaskConfig("sleep", "1000"))
		keptHandle := e.start(kept)
		another := newEnv(t, e.containerd, nil)
		another.start(another.task(defaultTaskConfig("sleep", "1000")))
		e.restart()
		must.NoError(t, e.harness.RecoverTask(keptHandle))
		e.tidy(time.Minute)
		must.Len(t, 2, e.containers(), must.Sprint("the grace period was not kept"))
		e.tidy(time.Hour)
		must.Len(t, 1, e.containers())
		must.Len(t, 1, another.containers(), must.Sprint("another node's container was removed"))
		lease, err := e.driver.state.Leases()
		must.NoError(t, err)
		must.Len(t, 0, lease, must.Sprint("an hour later the ended lease should be gone"))
	})
}

func TestConformance_FingerprintHealth(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ch, err := e.driver.Fingerprint(ctx)
		must.NoError(t, err)
		// A containerd that starts answers step by step, and each step is told.
		until := func(health drivers.HealthState) {
			t.Helper()
			for f := range ch {
				if f.Health == health {
					return
				}
				t.Logf("%s: %s", f.Health, f.HealthDescription)
			}
			t.Fatalf("it was never %s", health)
		}
		until(drivers.HealthStateHealthy)
		e.containerd.kill()
		until(drivers.HealthStateUnhealthy)
		e.containerd.start(t)
		until(drivers.HealthStateHealthy)
	})
}

func TestConformance_LogCollectionDisabled(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.quietTask(defaultTaskConfig("sh", "-c", "seq 1 100000; exit 4"), func(cfg *drivers.TaskConfig) {
			cfg.StdoutPath, cfg.StderrPath = os.DevNull, os.DevNull
		})
		e.start(cfg)
		must.Eq(t, 4, e.wait(cfg.ID).ExitCode)
	})
}

// The container is removed behind Nomad's back.
func TestConformance_MissingContainer_Cleanup(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		cfg := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0))
		e.start(cfg)
		watched, err := e.driver.tasks.get(cfg.ID)
		must.NoError(t, err)
		must.NoError(t, watched.container.End(context.Background()))
		must.NoError(t, watched.container.Remove(context.Background()))
		must.Eq(t, 137, e.wait(cfg.ID).ExitCode)
		must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
		must.ErrorIs(t, e.driver.DestroyTask(cfg.ID, true), drivers.ErrTaskNotFound)
		must.Eq(t, nil, e.leftovers())
	})
}

// Who waits may go and come back; the task does not notice.
func TestConformance_StartWaitRecover(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", trap))
		handle := e.start(cfg)
		e.waitForLog(cfg, "ready")
		ctx, cancel := context.WithCancel(context.Background())
		gone, err := e.harness.WaitTask(ctx, cfg.ID)
		must.NoError(t, err)
		cancel()
		must.ErrorContains(t, (<-gone).Err, "context canceled")
		e.restart()
		must.NoError(t, e.harness.RecoverTask(handle))
		status, err := e.harness.InspectTask(cfg.ID)
		must.NoError(t, err)
		must.Eq(t, drivers.TaskStateRunning, status.State)
		must.NoError(t, e.harness.SignalTask(cfg.ID, "SIGUSR1"))
		must.Eq(t, 42, e.wait(cfg.ID).ExitCode)
		must.Eq(t, 42, e.wait(cfg.ID).ExitCode, must.Sprint("who asks later is told as well"))
	})
}

// What a task has started in the background ends with it.
func TestConformance_NoOrphanedTasks(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", `trap '' TERM; sh -c 'trap "" TERM; sleep 1000' & sleep 1000 & echo ready; wait`))
		e.start(cfg)
		e.waitForLog(cfg, "ready")
		watched, err := e.driver.tasks.get(cfg.ID)
		must.NoError(t, err)
		var pids []int
		eventually(t, "all processes run", func() bool {
			pids = processesOf(watched.record.Lease.Cgroup)
			return len(pids) >= 3
		})
		must.NoError(t, e.harness.StopTask(cfg.ID, 100*time.Millisecond, "SIGTERM"))
		for _, pid := range pids {
			eventually(t, "process "+itoa(pid)+" has ended", func() bool { return processGone(pid) })
		}
		// One whose handle Nomad has lost is destroyed by its ID.
		unknown := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(unknown)
		pid := e.pid(unknown)
		e.restart()
		must.NoError(t, e.harness.DestroyTask(unknown.ID, true))
		must.True(t, processGone(pid))
		must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
		must.Len(t, 0, e.containers())
	})
}

// processesOf lists the processes whose control group has the path.
func processesOf(cgroup string) []int {
	var pids []int
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if pid, convErr := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && convErr == nil && strings.Contains(string(text), cgroup+"\n") {
			pids = append(pids, pid)
		}
	}
	return pids
}
