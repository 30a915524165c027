package driver

import (
	"os"
	"testing"
	"time"

	dtestutil "github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test/must"
)

func TestExecTask(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		result, err := e.harness.ExecTask(cfg.ID, []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, patience)
		must.NoError(t, err)
		must.Eq(t, "out\n", string(result.Stdout))
		must.Eq(t, "err\n", string(result.Stderr))
		must.Eq(t, 3, result.ExitResult.ExitCode)
		_, err = e.harness.ExecTask(cfg.ID, []string{"sleep", "1000"}, 300*time.Millisecond)
		must.ErrorContains(t, err, `["sleep" "1000"] had not ended after 300ms and was killed`)
		_, err = e.harness.ExecTask(cfg.ID, []string{"/no/such"}, patience)
		must.ErrorContains(t, err, "/no/such")
		result, err = e.harness.ExecTask(cfg.ID, []string{"sh", "-c", "ls /proc"}, patience)
		must.NoError(t, err)
		must.StrNotContains(t, string(result.Stdout), "\n1000\n")
	})
}

func TestConformance_ExecStreaming(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		dtestutil.ExecTaskStreamingConformanceTests(t, e.harness, cfg.ID)
	})
}

func TestExecSessionsEndWithTheDriver(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		handle := e.start(cfg)
		config := defaultTaskConfig("sleep", "1000")
		e.victim(orders{Config: e.config, Task: cfg, Driver: config, Exec: []string{"sleep", "4711"}, DieAfter: "exec"}, 0)
		e.restart()
		must.NoError(t, e.harness.RecoverTask(handle))
		result, err := e.harness.ExecTask(cfg.ID, []string{"sh", "-c", "cat /proc/[0-9]*/cmdline"}, callTimeout)
		must.NoError(t, err)
		must.StrNotContains(t, string(result.Stdout), "4711")
		pipes, err := os.ReadDir(fifoDir(e.config))
		if err == nil {
			must.Len(t, 0, pipes)
		}
	})
}
