// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// TestDestroyedWhileOthersAreAway: Nomad asks once to destroy a task, and gives its
// GPU to another then. Whoever is away at that moment, the task's processes end, and
// its container is removed when everybody is back.
func TestDestroyedWhileOthersAreAway(t *testing.T) {
	for name, away := range map[string]func(e *env, cfg *drivers.TaskConfig, handle *drivers.TaskHandle){
		"containerd": func(e *env, _ *drivers.TaskConfig, _ *drivers.TaskHandle) {
			e.containerd.kill()
		},
		"containerd and the shim": func(e *env, cfg *drivers.TaskConfig, _ *drivers.TaskHandle) {
			e.containerd.kill()
			must.NoError(e.t, syscall.Kill(shimOf(e.t, cfg), syscall.SIGKILL))
		},
		"containerd, and the driver that is restarted": func(e *env, _ *drivers.TaskConfig, handle *drivers.TaskHandle) {
			e.containerd.kill()
			e.restart()
			must.NoError(e.t, e.harness.RecoverTask(handle))
		},
		"containerd, and the driver that does not know the task": func(e *env, _ *drivers.TaskConfig, _ *drivers.TaskHandle) {
			e.containerd.kill()
			e.restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			withOwnContainerd(t, func(t *testing.T, e *env) {
				newNode(e)
				cfg := e.quietTask(defaultTaskConfig("sh", "-c", stubborn), reserve(gpuA, 0, 1))
				handle := e.start(cfg)
				e.waitUntilReady(cfg)
				pid := e.pid(cfg)
				away(e, cfg, handle)
				if _, err := e.driver.tasks.get(cfg.ID); err == nil { // else Nomad destroys what could not be recovered
					must.NoError(t, e.driver.StopTask(cfg.ID, time.Second, "SIGKILL"))
				}
				must.Error(t, e.driver.DestroyTask(cfg.ID, true), must.Sprint("its container is still there"))
				// A process has closed its files when it leaves its control group, and is gone a little later.
				eventually(t, "the task does not run on with its GPU", func() bool { return processGone(pid) })
				// Also the driver goes before it can remove the container.
				e.restart()
				e.containerd.start(t)
				e.waitForContainerd()
				eventually(t, "the container is removed", func() bool { return len(e.containers()) == 0 })
				e.nomadStarts(e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0, 1)))
			})
		})
	}
}

// TestStoppedWhileContainerdIsAway: the task gets its time, then it ends all the same,
// with what Nomad needs to go on.
func TestStoppedWhileContainerdIsAway(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		cfg := e.quietTask(defaultTaskConfig("sh", "-c", stubborn), reserve(gpuA, 0))
		e.start(cfg)
		e.waitUntilReady(cfg)
		pid := e.pid(cfg)
		e.containerd.kill()
		must.NoError(t, e.driver.StopTask(cfg.ID, 100*time.Millisecond, "SIGTERM"))
		eventually(t, "the task is dead", func() bool { return processGone(pid) })
		must.Eq(t, 137, e.wait(cfg.ID).ExitCode)
		lease, err := e.driver.state.Lease(gpu.LeaseID(cfg.AllocID, cfg.Name))
		must.NoError(t, err)
		must.False(t, lease.Live())
		must.Error(t, e.driver.DestroyTask(cfg.ID, true))
		e.containerd.start(t)
		e.waitForContainerd()
		eventually(t, "the container is removed", func() bool { return len(e.containers()) == 0 })
		must.Eq(t, nil, e.leftovers())
	})
}

// TestAStartThatLosesContainerdRunsNowhere: what the start has made is dead when it
// fails, and removed when containerd is back.
func TestAStartThatLosesContainerdRunsNowhere(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		nomad := newNomadState(t)
		cfg := e.quietTask(defaultTaskConfig("sh", "-c", stubborn), reserve(gpuA, 0))
		pid := 0
		e.driver.after(func(step string) {
			if step == "run" {
				e.waitUntilReady(cfg)
				pid = firstProcess(t, cfg)
				e.containerd.kill()
				must.NoError(t, errors.Join(nomad.stop(cfg), e.endUnwanted(nomad)))
			}
		})
		_, _, err := e.driver.StartTask(cfg)
		must.ErrorIs(t, err, errStartStopped)
		// A process has closed its files when it leaves its control group, and is gone a little later.
		eventually(t, "the task does not run on with its GPU", func() bool { return processGone(pid) })
		lease, err := e.driver.state.Lease(gpu.LeaseID(cfg.AllocID, cfg.Name))
		must.NoError(t, err)
		must.True(t, lease.Live(), must.Sprint("the lease ended before its container was gone"))
		// Nomad gives the slices to another.
		_, _, err = e.driver.StartTask(e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0)))
		must.True(t, structs.IsRecoverable(err), must.Sprint(err))

		e.containerd.start(t)
		e.waitForContainerd()
		eventually(t, "the container is removed", func() bool { return len(e.containers()) == 0 })
		e.driver.steps = startSteps
		e.nomadStarts(e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0)))
	})
}

// TestSlicesThatAnotherStillHolds: Nomad may take a task for ended that is not.
func TestSlicesThatAnotherStillHolds(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		e.start(e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0, 1)))
		_, _, err := e.driver.StartTask(e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 1, 2)))
		must.ErrorContains(t, err, "is still held by task")
		must.True(t, structs.IsRecoverable(err))
		e.start(e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 2, 3)))
	})
}
