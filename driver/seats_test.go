// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// suspenderEnv makes the test binary the device plugin's program that moves tasks: where
// each process is stands in a file of the directory that it names. The real program is
// met in e2e.
const suspenderEnv = "NOMAD_GPU_TEST_SUSPENDER"

func suspenderMain(dir string) error {
	var r gpu.CheckpointRequest
	if err := json.NewDecoder(os.Stdin).Decode(&r); err != nil {
		return err
	}
	a := gpu.CheckpointAnswer{Version: gpu.StateVersion}
	// What the first starts does not use the GPU, and is not told of.
	for _, pid := range firstsOf(r.PIDs) {
		state := processState(dir, pid)
		switch r.Action {
		case gpu.CheckpointSuspend:
			if state == gpu.ProcessRunning {
				a.HeldMiB = 10 << 10
			}
			state = gpu.ProcessCheckpointed
		case gpu.CheckpointResume:
			state = gpu.ProcessRunning
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(pid)), []byte(state), 0o600); err != nil {
			return err
		}
		a.Processes = append(a.Processes, gpu.CheckpointProcess{PID: pid, State: state})
	}
	return json.NewEncoder(os.Stdout).Encode(a)
}

func processState(dir string, pid int) gpu.CheckpointState {
	text, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(pid)))
	if errors.Is(err, fs.ErrNotExist) {
		return gpu.ProcessRunning
	}
	return gpu.CheckpointState(text)
}

// seatedNode is a node with GPU A for tasks that step aside for each other, each of which
// holds 10 of its 16 GiB while it is there.
type seatedNode struct {
	*node
	processes string
}

func newSeatedNode(e *env) seatedNode {
	n := seatedNode{node: newNode(e), processes: e.t.TempDir()}
	self, err := os.Executable()
	must.NoError(e.t, err)
	n.publish(gpuA, func(s *gpu.GPUState) {
		s.Mode, s.Sharing, s.Slices, s.SliceMemoryMiB, s.MPS = gpu.ModeShared, gpu.SharingSuspend, 4, 0, nil
		s.Seats = &gpu.SeatRules{HostMemoryMiB: 30 << 10, HeadroomMiB: 1024, IdleMS: 3600_000, MinTurnMS: 100, MaxWaitMS: 3600_000, SwitchPercent: 10, MaxPriority: 90,
			Suspender: gpu.Suspender{Command: []string{self}, Env: []string{suspenderEnv + "=" + n.processes}}}
	})
	stop := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				n.measure()
			}
		}
	})
	e.t.Cleanup(func() { close(stop); work.Wait() })
	return n
}

// measure writes what the device plugin would.
func (n seatedNode) measure() {
	leases, _ := n.dir.Leases()
	u := gpu.Usage{MeasuredAt: time.Now().UTC(), Devices: []gpu.DeviceUsage{{UUID: gpuA, CapacityMiB: 16 << 10}}}
	for _, l := range leases {
		task := gpu.TaskUsage{LeaseID: l.ID, UUID: gpuA, Milli: 100}
		dirs, _ := cgroups.Tree(cgroups.Of(l), cgroups.Unified())
		pids, _ := cgroups.Processes(dirs)
		if first := firstsOf(pids); len(first) == 1 && processState(n.processes, first[0]) == gpu.ProcessRunning {
			task.MemoryMiB, task.Processes = 10<<10, len(pids)
			u.Devices[0].UsedMiB += 10 << 10
		}
		u.Tasks = append(u.Tasks, task)
	}
	_ = n.dir.WriteUsage(u)
}

func (n seatedNode) task(priority, seat int) *drivers.TaskConfig {
	config := defaultTaskConfig("sh", "-c", "i=0; while :; do i=$((i+1)); echo $i > /local/count; sleep 0.05; done")
	config.GPU = taskconfig.GPUConfig{Memory: "10GiB", Priority: fmt.Sprint(priority)}
	return n.e.quietTask(config, reserveDevice(gpu.ReservedDevice{UUID: gpuA, Mode: gpu.ModeShared, Slices: []int{seat}, Of: 4, BurstMilli: 1000}))
}

// A task of higher priority waits for its seat before its program runs; who has it steps
// aside, with room for its memory on the host, and comes back. A new driver goes on.
func TestATaskStepsAsideForAnother(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newSeatedNode(e)
		said := listen(t, e)
		first := n.task(50, 0)
		e.start(first)
		heard := func(cfg *drivers.TaskConfig, what string) {
			t.Helper()
			eventually(t, "it is told "+what, func() bool { return said.has(cfg.ID, what) })
		}
		host := &seatHost{driver: e.driver, uuid: gpuA}
		lease := func(cfg *drivers.TaskConfig) string { return gpu.LeaseID(cfg.AllocID, cfg.Name) }
		before, err := host.MemoryLimit(lease(first))
		must.NoError(t, err)
		must.Eq(t, 128<<20, before)

		second := n.task(80, 1)
		e.start(second)
		heard(first, "suspended, its 10240 MiB of GPU memory moved to the host: a task of higher priority wants the GPU (80, this one has 50), for "+lease(second))
		raised, err := host.MemoryLimit(lease(first))
		must.NoError(t, err)
		must.Eq(t, int64(128+10<<10+1024+64)<<20, raised)

		third := n.task(80, 2)
		_, _, err = e.driver.StartTask(third)
		must.ErrorContains(t, err, "of the 30G that suspend.host_memory allows are promised")

		e.restart()
		must.NoError(t, e.driver.RecoverTask(handleOf(first)))
		must.NoError(t, e.driver.RecoverTask(handleOf(second)))
		host.driver = e.driver
		said = listen(t, e)
		e.end(second)
		heard(first, "back on the GPU with its 10240 MiB of GPU memory")
		eventually(t, "the memory limit is what it was", func() bool {
			now, err := host.MemoryLimit(lease(first))
			return err == nil && now == before
		})
		must.NoError(t, e.driver.StopTask(first.ID, time.Second, "SIGKILL"))
		must.Eq(t, 137, e.wait(first.ID).ExitCode)
	})
}

func handleOf(cfg *drivers.TaskConfig) *drivers.TaskHandle {
	handle := drivers.NewTaskHandle(handleVersion)
	handle.Config, handle.State = cfg, drivers.TaskStateRunning
	return handle
}

// messages are the events of tasks.
type messages struct {
	mu  sync.Mutex
	all []string
}

func (m *messages) has(taskID, what string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.all, func(line string) bool { return strings.HasPrefix(line, taskID) && strings.Contains(line, what) })
}

// listen takes note of what the driver tells tasks from now on.
func listen(t *testing.T, e *env) *messages {
	t.Helper()
	events, err := e.driver.TaskEvents(t.Context())
	must.NoError(t, err)
	m := &messages{}
	go func() {
		for event := range events {
			m.mu.Lock()
			m.all = append(m.all, event.TaskID+" "+event.Message)
			m.mu.Unlock()
		}
	}()
	return m
}
