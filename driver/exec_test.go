// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
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

// A task puts a link in the place of its working directory, for the next command that the
// runtime starts there.
func TestExecInADirectoryThatWasReplaced(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", "mv /local/wd /local/old; ln -s $TARGET /local/wd; touch /local/done; sleep 1000")
		config.Cwd = "/local/wd"
		for target, says := range map[string]string{"/proc/self/fd/7": `working directory "/local/wd"`, "/proc/1": `working directory "/local/wd" is the kernel's by now`, "/tmp": ""} {
			cfg := e.task(config)
			cfg.Env["TARGET"] = target
			local := cfg.TaskDir().LocalDir
			must.NoError(t, os.MkdirAll(filepath.Join(local, "wd"), 0o755))
			e.start(cfg)
			eventually(t, "the link is there", func() bool { return fileExists(filepath.Join(local, "done")) })
			result, err := e.harness.ExecTask(cfg.ID, []string{"pwd"}, patience)
			if says != "" {
				must.ErrorContains(t, err, says)
				continue
			}
			must.NoError(t, err)
			must.Eq(t, "/tmp\n", string(result.Stdout))
		}
	})
}
