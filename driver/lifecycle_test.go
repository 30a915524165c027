// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

func TestSignalTask(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", trap))
		e.start(cfg)
		e.waitForLog(cfg, "ready")
		must.NoError(t, e.harness.SignalTask(cfg.ID, "SIGUSR1"))
		must.Eq(t, 42, e.wait(cfg.ID).ExitCode)
	})
}

func TestMissingCommandLeavesNothing(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.quietTask(defaultTaskConfig("/no/such/program"))
		_, _, err := e.harness.StartTask(cfg)
		must.ErrorContains(t, err, "/no/such/program")
		must.Len(t, 0, e.containers())
		must.ErrorIs(t, e.driver.DestroyTask(cfg.ID, true), drivers.ErrTaskNotFound)
	})
}

func TestInspectTask(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		status, err := e.harness.InspectTask(cfg.ID)
		must.NoError(t, err)
		must.Eq(t, drivers.TaskStateRunning, status.State)
		must.NotEq(t, "", status.DriverAttributes["container_id"])
		must.NoError(t, e.harness.StopTask(cfg.ID, 0, "SIGKILL"))
		status, err = e.harness.InspectTask(cfg.ID)
		must.NoError(t, err)
		must.Eq(t, drivers.TaskStateExited, status.State)
		must.Eq(t, 137, status.ExitResult.ExitCode)
		must.False(t, status.CompletedAt.IsZero())
	})
}
