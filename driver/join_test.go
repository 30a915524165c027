// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// inAllocOf puts a task beside another one, under a name of its own.
func inAllocOf(other *drivers.TaskConfig, name string) func(*drivers.TaskConfig) {
	return func(cfg *drivers.TaskConfig) {
		cfg.AllocID, cfg.Name = other.AllocID, name
		cfg.ID = other.AllocID + "/" + name + "/1"
	}
}

// namespaceLinks prints the namespaces of a task and what lies in its /dev/shm.
const namespaceLinks = "readlink /proc/self/ns/ipc /proc/self/ns/pid /proc/self/ns/net; ls /dev/shm; stat -f -c %b /dev/shm"

func TestNamespacesOfAnotherTask(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		owner := defaultTaskConfig("sh", "-c", namespaceLinks+"; touch /dev/shm/of-owner; echo ready; sleep 1000")
		owner.IPCMode, owner.ShmSize = "shareable", "8M"
		ownerCfg := e.task(owner)
		// It may run before the owner's shell has got as far.
		joiner := defaultTaskConfig("sh", "-c", "until [ -e /dev/shm/of-owner ]; do sleep 0.05; done; "+namespaceLinks+"; ls /proc")
		joiner.IPCMode, joiner.PIDMode, joiner.NetworkMode = "task:web", "task:web", "task:web"
		joinerCfg := e.task(joiner, inAllocOf(ownerCfg, "side"))

		// The joiner comes first, and waits.
		started := make(chan error, 1)
		go func() {
			_, _, err := e.harness.StartTask(joinerCfg)
			started <- err
		}()
		e.start(ownerCfg)
		must.NoError(t, <-started)
		e.waitForLog(ownerCfg, "ready")
		must.Eq(t, 0, e.wait(joinerCfg.ID).ExitCode)
		got, want := lines(e.logs(joinerCfg, "stdout")), lines(e.logs(ownerCfg, "stdout"))
		must.Eq(t, want[:3], got[:3])
		must.Eq(t, "2048", want[3], must.Sprint("shm_size is not in force"))
		must.SliceContains(t, got, "of-owner")
		must.SliceContains(t, got, "1", must.Sprint("the owner's first process is not seen"))
		e.nothingLeft()
		mounts, err := os.ReadFile("/proc/self/mounts")
		must.NoError(t, err)
		must.StrNotContains(t, string(mounts), e.config.StateDir+"/shm")
	})
}

func TestNamespacesThatCannotBeShared(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		newNode(e)
		owner := e.task(defaultTaskConfig("sleep", "1000"))
		e.start(owner)
		for _, test := range []struct {
			name   string
			change func(*taskconfig.Config)
			says   string
		}{
			{"IPC that is private", func(c *taskconfig.Config) { c.IPCMode = "task:web" }, `give it ipc_mode = "shareable"`},
			{"itself", func(c *taskconfig.Config) { c.PIDMode = "task:side" }, `pid_mode: "task:side" names the task itself`},
			{"no name", func(c *taskconfig.Config) { c.PIDMode = "task:" }, `pid_mode: "task:" is not one of private, host, task:<name of another task of the group>`},
			{"PID namespaces have no such mode", func(c *taskconfig.Config) { c.PIDMode = "shareable" }, `pid_mode: "shareable" is not one of`},
			{"a size for what another task brings", func(c *taskconfig.Config) { c.IPCMode, c.ShmSize = "task:web", "1G" }, "shm_size: cannot be set"},
		} {
			config := defaultTaskConfig("true")
			test.change(&config)
			_, _, err := e.harness.StartTask(e.quietTask(config, inAllocOf(owner, "side")))
			must.ErrorContains(t, err, test.says, must.Sprint(test.name))
		}
		mps := defaultTaskConfig("true")
		mps.IPCMode = "shareable"
		_, _, err := e.harness.StartTask(e.quietTask(mps, reserve(gpuA, 0)))
		must.ErrorContains(t, err, "it uses the /dev/shm of the MPS daemon")
		e.end(owner)
		e.nothingLeft()
	})
}

func TestTaskThatIsNotThereIsWaitedForAndNamed(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("true")
		config.PIDMode = "task:db"
		cfg := e.quietTask(config)
		plan, err := e.driver.plan(context.Background(), cfg)
		must.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		err = e.driver.join(ctx, plan)
		must.ErrorContains(t, err, `pid_mode "task:db": no task "db" of this allocation runs with this driver`)
		must.True(t, structs.IsRecoverable(recoverable(err)))
	})
}

// A namespace is held from the moment that its task was known to run: a number of a
// process that has ended can be the host's own.
func TestNamespacesAreHeldNotLookedUpAgain(t *testing.T) {
	sleeper := exec.Command("unshare", "--ipc", "sleep", "1000")
	must.NoError(t, sleeper.Start())
	running := runtime.Status{Running: true, PID: sleeper.Process.Pid}
	own := fmt.Sprintf("/proc/%d/ns/ipc", sleeper.Process.Pid)
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		theirs, err := os.Readlink(own)
		ours, _ := os.Readlink("/proc/self/ns/ipc")
		return err == nil && theirs != ours
	}), wait.Timeout(patience), wait.Gap(10*time.Millisecond)))
	want, err := os.Stat(own)
	must.NoError(t, err)

	held, err := holdNamespace("ipc", func() (runtime.Status, error) { return running, nil })
	must.NoError(t, err)
	defer held.Close()
	asked := 0
	_, err = holdNamespace("ipc", func() (runtime.Status, error) {
		if asked++; asked == 1 {
			return running, nil
		}
		must.NoError(t, sleeper.Process.Kill())
		_ = sleeper.Wait()
		return runtime.Status{PID: running.PID}, nil
	})
	must.ErrorIs(t, err, errJustEnded)

	// It is the same one still, although its process is gone, where a container finds it.
	stage, err := rooted.NewStage(filepath.Join(t.TempDir(), "stage"))
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, rooted.RemoveStage(stage.Dir())) })
	path, err := stage.Bind("ns-ipc", held, rooted.Binding{Propagation: rooted.Private})
	must.NoError(t, err)
	got, err := os.Stat(path)
	must.NoError(t, err)
	must.True(t, os.SameFile(want, got))
}
