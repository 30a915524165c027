// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// startV3 starts the stand-in for a daemon of MPS v3 with its gate, as the device plugin
// does, and publishes that.
func startV3(t *testing.T, n *node, branch string) mpsctl.V3 {
	t.Helper()
	server := standInServer(t)
	program := filepath.Join(filepath.Dir(filepath.Dir(server)), branch, "nvidia-cuda-mps-control")
	must.NoError(t, os.MkdirAll(filepath.Dir(program), 0o755))
	if err := os.Link(server, program); !errors.Is(err, os.ErrExist) {
		must.NoError(t, err)
	}
	dir, err := os.MkdirTemp("", "mps") // the path of a socket is short
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	own := filepath.Join(dir, "daemon", "pipe")
	for _, sub := range []string{"pipe", "daemon/pipe", "log", "shm"} {
		must.NoError(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	config := filepath.Join(dir, "mps.toml")
	must.NoError(t, os.WriteFile(config, []byte("schema_version = \"1.0\"\n[servers.tasks]\nactive_thread_percentage = \"1\"\npinned_memory_limit = \"1M\"\n"), 0o644))
	c := mpsctl.V3{Control: mpsctl.Control{Program: program, PipeDir: own, Timeout: patience,
		Env: []string{"CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(dir, "log"), "CUDA_VISIBLE_DEVICES=" + gpuA}}}
	_, err = c.Run(t.Context(), program, []string{"-d", "-p", "3", "-m", "-a", config}, "", nil)
	must.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, _ = c.Do(ctx, "-q")
	})
	must.NoError(t, mpsctl.PlacesOf(own).Begin())
	startGate(t, filepath.Join(dir, "pipe"), own)
	n.publish(gpuA, func(s *gpu.GPUState) {
		s.MPS.PipeDir, s.MPS.LogDir, s.MPS.ShmDir = filepath.Join(dir, "pipe"), filepath.Join(dir, "log"), filepath.Join(dir, "shm")
		s.MPS.Control, s.MPS.ControlDir, s.MPS.Protocol, s.MPS.Multiprocessors = program, own, 3, 132
		s.MPS.Priorities = true
	})
	return c
}

// untilNamespaces waits until the daemon has so many namespaces of tasks.
func untilNamespaces(t *testing.T, c mpsctl.V3, want int) []string {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		names, err := c.Namespaces(t.Context(), gpu.MPSServer)
		must.NoError(t, err)
		if len(names) == want+1 {
			return names
		}
		if time.Now().After(deadline) {
			t.Fatalf("the namespaces are %v, not %d", names, want)
		}
	}
}

// A task's programs are in its namespace, with the limits of its share, whatever its job
// sets, and it goes with the task.
func TestTaskHasAnMPSNamespace(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		c := startV3(t, n, "615")
		program := goProgram(t, "device/sim/mps-client")
		config := defaultTaskConfig("sh", "-c", `
unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 CUDA_MPS_SM_PARTITION=GPU-x/y
(sleep 1; printf 'where\nsms\nalloc 1024\nalloc 2\n') | /local/mps-client > /local/said.new; mv /local/said.new /local/said
sleep 1000`)
		config.GPU.Compute, config.GPU.ComputeLimit = 30, 500
		cfg := e.task(config, reserve(gpuA, 0))
		must.NoError(t, exec.Command("cp", program, filepath.Join(cfg.TaskDir().LocalDir, "mps-client")).Run())
		e.start(cfg)
		names := untilNamespaces(t, c, 1)
		leases, err := n.dir.Leases()
		must.NoError(t, err)
		name := gpu.MPSNamespace(leases[0].Container)
		must.Eq(t, []string{name, "default"}, names)
		must.NoError(t, c.Confirm(t.Context(), gpu.MPSServer, name, mpsctl.Limits{MemoryMiB: 1024, Percent: 50}))
		var said []byte
		eventually(t, "the task says what it has", func() bool {
			said, err = os.ReadFile(filepath.Join(cfg.TaskDir().LocalDir, "said"))
			return err == nil
		})
		lines := strings.Split(strings.TrimSpace(string(said)), "\n")
		must.Eq(t, []string{name, "66", "ok", "CUDA_ERROR_OUT_OF_MEMORY"}, lines[1:])

		// A neighbor's is another one.
		neighbor := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 1))
		e.start(neighbor)
		untilNamespaces(t, c, 2)
		e.end(cfg)
		untilNamespaces(t, c, 1)
		e.end(neighbor)
		untilNamespaces(t, c, 0)
		places, err := mpsctl.PlacesOf(c.PipeDir).All()
		must.NoError(t, err)
		must.MapEmpty(t, places)
	})
}

// Without its namespace a task does not start, and what was made of it goes.
func TestTaskWithoutAnMPSNamespaceDoesNotStart(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		c := startV3(t, n, "620")
		must.NoError(t, os.WriteFile(filepath.Join(c.PipeDir, "behavior"), []byte("lie\n"), 0o644))
		cfg := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0))
		_, _, err := e.harness.StartTask(cfg)
		must.ErrorContains(t, err, "the task gets no MPS namespace")
		must.ErrorContains(t, err, "the daemon took its limits and has others")
		must.True(t, structs.IsRecoverable(err))
		e.nothingLeft()
		untilNamespaces(t, c, 0)
	})
}

// A task's programs are terminated before it is killed, and its neighbor's are not.
func TestProgramsOfANamespaceAreTerminated(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		startV3(t, n, "615")
		program := goProgram(t, "device/sim/mps-client")
		start := func(slice int) (*drivers.TaskConfig, string) {
			cfg := e.task(defaultTaskConfig("sh", "-c", `trap "" TERM; sleep 1000 | /local/mps-client > /local/said; echo ended > /local/ended; while :; do sleep 1; done`), reserve(gpuA, slice))
			must.NoError(t, exec.Command("cp", program, filepath.Join(cfg.TaskDir().LocalDir, "mps-client")).Run())
			e.start(cfg)
			said := filepath.Join(cfg.TaskDir().LocalDir, "said")
			eventually(t, "its program is on the server", func() bool {
				text, _ := os.ReadFile(said)
				return strings.HasPrefix(string(text), "connected")
			})
			return cfg, said
		}
		cfg, _ := start(0)
		_, other := start(1)
		task, err := e.driver.tasks.get(cfg.ID)
		must.NoError(t, err)
		must.NoError(t, e.driver.terminateClients(task))
		programs, err := startedPrograms(e, n)
		must.NoError(t, err)
		must.Len(t, 1, programs)
		text, err := os.ReadFile(other)
		must.NoError(t, err)
		must.StrContains(t, string(text), "connected")
	})
}

// startedPrograms are those of the daemon's server, once a terminated one has left it.
func startedPrograms(e *env, n *node) (programs []mpsctl.Client, err error) {
	s, err := n.dir.GPU(gpuA)
	if err != nil {
		return nil, err
	}
	c := mpsctl.V3{Control: mpsctl.Control{Program: s.MPS.Control, PipeDir: s.MPS.CommandDir(), Timeout: patience}}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if programs, err = c.Programs(e.t.Context(), gpu.MPSServer); err != nil || len(programs) < 2 {
			return programs, err
		}
	}
	return programs, nil
}

// What a task changes of its share, its namespace has at once, as far as the daemon lets it:
// a guarantee always, a limit while no program of the task is on the GPU. Where it does not,
// nothing is changed, and the task is told why.
func TestResizeChangesANamespace(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(withSelf(t, e))
		e = n.e
		c := startV3(t, n, "620")
		program := goProgram(t, "device/sim/mps-client")
		config := defaultTaskConfig("sh", "-c", `while [ ! -e /local/go ]; do sleep 0.1; done; sleep 1000 | /local/mps-client > /local/said`)
		config.GPU.Compute, config.GPU.ComputeLimit, config.GPU.Priority = 500, 800, taskconfig.PriorityBelowNormal
		cfg := e.task(config, reserve(gpuA, 0, 1))
		local := cfg.TaskDir().LocalDir
		must.NoError(t, exec.Command("cp", program, filepath.Join(local, "mps-client")).Run())
		e.start(cfg)
		lease := func() gpu.Lease {
			t.Helper()
			l, err := n.dir.Lease(gpu.LeaseID(cfg.AllocID, cfg.Name))
			must.NoError(t, err)
			return l
		}
		has := func(milli int64) {
			t.Helper()
			must.NoError(t, c.Confirm(t.Context(), gpu.MPSServer, gpu.MPSNamespace(lease().Container),
				mpsctl.Limits{MemoryMiB: 2048, Percent: mpsctl.PercentFor(milli, 132), BelowNormal: true}))
			must.Eq(t, milli, lease().Holdings[0].LimitMilli)
		}
		settle := func() { // the share can be changed every few seconds
			task, err := e.driver.tasks.get(cfg.ID)
			must.NoError(t, err)
			task.own.mu.Lock()
			task.own.last = time.Time{}
			task.own.mu.Unlock()
		}
		has(800)
		a := e.askSelf(cfg, "resize", "limit=0.6")
		must.StrContains(t, a.Message, "at most 0.6; it holds from now on")
		has(600)

		must.NoError(t, os.WriteFile(filepath.Join(local, "go"), nil, 0o644))
		eventually(t, "its program is on the server", func() bool {
			text, _ := os.ReadFile(filepath.Join(local, "said"))
			return strings.HasPrefix(string(text), "connected")
		})
		settle()
		_, problem, code := e.in(cfg, "nomad-gpu-self", "resize", "limit=0.9")
		must.Eq(t, 1, code)
		must.StrContains(t, problem, "this driver's MPS changes a task's limits only while none of its programs is on the GPU")
		has(600)
		settle()
		a = e.askSelf(cfg, "resize", "compute=0.3")
		must.StrContains(t, a.Message, "compute 0.3, at most 0.6; it holds from now on")
		must.Eq(t, 300, lease().Holdings[0].GuaranteeMilli)
		has(600)

		// No page says that a daemon of 620 takes it; one that does is believed when it says so.
		must.NoError(t, os.WriteFile(filepath.Join(c.PipeDir, "behavior"), []byte("live-limits\n"), 0o644))
		settle()
		e.askSelf(cfg, "resize", "limit=0.9")
		has(900)
	})
}
