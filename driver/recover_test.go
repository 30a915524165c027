// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

func TestRecoverTaskWhoseExitWasSeen(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", "exit 5"))
		handle := e.start(cfg)
		must.Eq(t, 5, e.wait(cfg.ID).ExitCode)
		watched, err := e.driver.tasks.get(cfg.ID)
		must.NoError(t, err)
		eventually(t, "the exit is in the labels", func() bool {
			c, err := e.driver.runtime.Load(context.Background(), watched.container.ID)
			if err != nil {
				return false
			}
			exit, seen := record.ExitOf(c.Labels)
			return seen && exit.Code == 5
		})
		// A reboot takes the process's record, the container's stays.
		e.driver.Shutdown()
		e.forgetProcesses()
		e.startDriver()
		must.NoError(t, e.harness.RecoverTask(handle))
		must.Eq(t, 5, e.wait(cfg.ID).ExitCode)
	})
}

func TestReboot(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		cfg := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0))
		handle := e.start(cfg)
		e.driver.Shutdown()
		e.forgetProcesses()
		// It takes mounts, too.
		pipes := pipes(config.Settings{Config: e.config})
		ids, err := pipes.IDs(time.Now().Add(time.Hour))
		must.NoError(t, err)
		for _, id := range ids {
			must.NoError(t, pipes.Remove(context.Background(), id))
		}
		must.NoError(t, os.RemoveAll(e.config.StateDir))
		e.startDriver()
		must.ErrorContains(t, e.harness.RecoverTask(handle), "not found")
		// What Nomad does then.
		must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
		must.Len(t, 0, e.containers())
		again := cfg.Copy()
		again.ID = cfg.AllocID + "/web/" + uuid.Short()
		_, _, err = e.harness.StartTask(again)
		must.ErrorContains(t, err, "published no state")
		newNodeFiles(n)
		e.start(again)
	})
}

// forgetProcesses does to containerd what a reboot does.
func (e *env) forgetProcesses() {
	e.t.Helper()
	client, err := runtime.New(runtime.Config{Socket: e.config.Socket, Namespace: e.config.Namespace})
	must.NoError(e.t, err)
	defer client.Close()
	all, err := client.Find(context.Background(), map[string]string{record.LabelNode: e.node})
	must.NoError(e.t, err)
	for _, c := range all {
		must.NoError(e.t, c.End(context.Background()))
	}
}

func TestContainerdRestart(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		running := e.task(defaultTaskConfig("sh", "-c", trap))
		e.start(running)
		e.waitForLog(running, "ready")
		ended := e.task(defaultTaskConfig("sh", "-c", "while [ ! -e /local/go ]; do sleep 0.02; done; exit 11"))
		e.start(ended)
		pid := e.pid(ended)

		e.containerd.kill()
		must.NoError(t, os.WriteFile(filepath.Join(ended.TaskDir().LocalDir, "go"), nil, 0o644))
		eventually(t, "the process has ended", func() bool { return processGone(pid) })
		e.containerd.start(t)

		result := e.wait(ended.ID)
		must.NoError(t, result.Err)
		must.Eq(t, 11, result.ExitCode)
		must.NoError(t, e.harness.StopTask(running.ID, 10*time.Second, "SIGTERM"))
		must.Eq(t, 43, e.wait(running.ID).ExitCode)
	})
}

func TestShimDeath(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		pid := e.pid(cfg)
		must.NoError(t, syscall.Kill(shimOf(t, cfg), syscall.SIGKILL))
		result := e.wait(cfg.ID)
		must.Eq(t, 137, result.ExitCode)
		must.ErrorContains(t, result.Err, "lost the task's process")
		eventually(t, "the process is gone", func() bool { return processGone(pid) })
		must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
		must.Len(t, 0, e.containers())
	})
}

// shimOf finds the shim of a task by its command line, where the container's
// name is, and in it the allocation's.
func shimOf(t *testing.T, cfg *drivers.TaskConfig) int {
	t.Helper()
	pid := findShim(cfg)
	must.NotEq(t, 0, pid, must.Sprint("no shim of "+cfg.ID))
	return pid
}

// findShim is shimOf, and 0 where there is none.
func findShim(cfg *drivers.TaskConfig) int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(line), "containerd-shim") && strings.Contains(string(line), "-"+cfg.AllocID[:8]) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	return 0
}

func TestLogsSurviveTheDriver(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		// More than the pipes hold, written while no driver is there.
		cfg := e.task(defaultTaskConfig("sh", "-c", "while [ ! -e /local/go ]; do sleep 0.02; done; seq 1 40000; exit 3"))
		handle := e.start(cfg)
		e.driver.Shutdown()
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "go"), nil, 0o644))
		e.waitForLog(cfg, "\n40000\n")
		e.startDriver()
		must.NoError(t, e.harness.RecoverTask(handle))
		must.Eq(t, 3, e.wait(cfg.ID).ExitCode)
		must.Eq(t, 40000, len(lines(e.logs(cfg, "stdout"))))
	})
}

func TestContainerdUpgrade(t *testing.T) {
	t.Parallel()
	older, newer := containerdOnPath(), containerdInBinDir()
	if older == "" || newer == "" {
		t.Skip("needs a containerd on PATH and a newer one in CONTAINERD_BIN_DIR")
	}
	c := startContainerd(t, older)
	e := newEnv(t, c, nil)
	running := e.task(defaultTaskConfig("sh", "-c", trap))
	e.start(running)
	e.waitForLog(running, "ready")
	ended := e.task(defaultTaskConfig("sh", "-c", "while [ ! -e /local/go ]; do sleep 0.02; done; exit 12"))
	e.start(ended)
	pid := e.pid(ended)

	c.kill()
	must.NoError(t, os.WriteFile(filepath.Join(ended.TaskDir().LocalDir, "go"), nil, 0o644))
	eventually(t, "the process has ended", func() bool { return processGone(pid) })
	c.use(t, newer)
	c.start(t)

	must.NoError(t, e.harness.StopTask(running.ID, 10*time.Second, "SIGTERM"))
	must.Eq(t, 43, e.wait(running.ID).ExitCode)
	// Containerd 2 cleans away what ended under containerd 1 while neither ran; the
	// shim told it before.
	result := e.wait(ended.ID)
	must.NoError(t, result.Err)
	must.Eq(t, 12, result.ExitCode)
	for _, cfg := range []*drivers.TaskConfig{running, ended} {
		must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
	}
	out, _ := e.run(defaultTaskConfig("echo", "started by the new one"))
	must.Eq(t, "started by the new one\n", out)
	e.nothingLeft()
}

func TestContainerdAway(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("true"))
		e.start(cfg)
		must.Eq(t, 0, e.wait(cfg.ID).ExitCode)
		e.containerd.kill()
		_, _, err := e.harness.StartTask(e.quietTask(defaultTaskConfig("true")))
		must.Error(t, err)
		must.True(t, structs.IsRecoverable(err), must.Sprint(err))
		// Nomad destroys once, and does not ask again: the driver goes on when containerd is back.
		must.Error(t, e.driver.DestroyTask(cfg.ID, true))
		e.containerd.start(t)
		e.waitForContainerd()
		e.nothingLeft()
		_, err = e.driver.InspectTask(cfg.ID)
		must.ErrorIs(t, err, drivers.ErrTaskNotFound)
	})
}
