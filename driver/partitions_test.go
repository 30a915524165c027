// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// partitioner starts the stand-in for a daemon with static partitioning, which has 16
// chunks, and publishes that.
func partitioner(t *testing.T, n *node) mpsctl.Control {
	t.Helper()
	server := standInServer(t)
	program := filepath.Join(filepath.Dir(filepath.Dir(server)), "590", "nvidia-cuda-mps-control")
	must.NoError(t, os.MkdirAll(filepath.Dir(program), 0o755))
	must.NoError(t, os.Link(server, program))
	control, _ := startControl(t, n, program, server, "-S")
	state, err := n.dir.GPU(gpuA)
	must.NoError(t, err)
	state.MPS.Partitioning = &gpu.MPSPartitioning{Chunks: 16, Multiprocessors: 132}
	must.NoError(t, n.dir.WriteGPU(state))
	return control
}

// untilPartitions waits until the daemon has partitions of so many chunks.
func untilPartitions(t *testing.T, c mpsctl.Control, chunks ...int) []mpsctl.Partition {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		p, err := c.Partitions(t.Context())
		must.NoError(t, err)
		equal := len(p.All) == len(chunks)
		for i := range p.All {
			equal = equal && p.All[i].Chunks == chunks[i]
		}
		if equal {
			return p.All
		}
		if time.Now().After(deadline) {
			t.Fatalf("the partitions are %+v, not of %v chunks", p.All, chunks)
		}
	}
}

// Each task has multiprocessors of its own, as long as it lives.
func TestTasksHaveMultiprocessorsOfTheirOwn(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		control := partitioner(t, n)
		// What a driver left that was killed before it could write the lease.
		left, err := control.AddPartition(t.Context(), gpuA, 12)
		must.NoError(t, err)

		config := defaultTaskConfig("sh", "-c", "echo $CUDA_MPS_SM_PARTITION $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE. >/local/env; exec sleep 1000")
		config.GPU.Compute = 300
		cfg := e.task(config, reserve(gpuA, 0, 1))
		e.start(cfg)
		all := untilPartitions(t, control, 5) // 4.8 of 16
		leases, err := n.dir.Leases()
		must.NoError(t, err)
		must.Eq(t, gpu.Partition{ID: all[0].ID, Chunks: 5}, *leases[0].Holdings[0].Partition)
		must.NotEq(t, left, all[0].ID)
		var seen []byte
		eventually(t, "the task says what it has", func() bool {
			seen, err = os.ReadFile(filepath.Join(cfg.TaskDir().LocalDir, "env"))
			return err == nil && len(seen) > 0
		})
		must.Eq(t, gpuA+"/"+all[0].ID+" .\n", string(seen))

		// What its processes run on is not taken for a leftover.
		must.NoError(t, os.WriteFile(filepath.Join(control.PipeDir, "behavior"), []byte("clients "+itoa(e.pid(cfg))+"\n"), 0o644))
		neighbor := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 2)) // 62 milli are a chunk
		e.start(neighbor)
		untilPartitions(t, control, 5, 1)

		greedy := defaultTaskConfig("sleep", "1000")
		greedy.GPU.Compute = 630
		refused := e.quietTask(greedy, reserve(gpuA, 3))
		_, _, err = e.harness.StartTask(refused)
		must.ErrorContains(t, err, "its guarantee of 0.63 takes 11 of the GPU's 16 chunks of multiprocessors, and other tasks have 6")
		must.True(t, structs.IsRecoverable(err))
		untilPartitions(t, control, 5, 1)

		e.end(cfg)
		untilPartitions(t, control, 1)
		e.end(neighbor)
		untilPartitions(t, control)
	})
}

// A partition's name is free as soon as it is removed: an earlier task's end does not
// take it from the task that has it now.
func TestPartitionOfAnotherTaskStays(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		control := partitioner(t, n)
		cfg := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0))
		e.start(cfg)
		all := untilPartitions(t, control, 1)
		earlier := gpu.Lease{ID: "earlier", Container: "earlier", Phase: gpu.PhaseEnded,
			Holdings: []gpu.Holding{{UUID: gpuA, MPSGeneration: 1, Partition: &gpu.Partition{ID: all[0].ID, Chunks: 1}}}}
		configured, err := e.driver.configured()
		must.NoError(t, err)
		e.driver.returnPartition(t.Context(), configured, earlier)
		untilPartitions(t, control, 1)
		// Nor does the end of a task of a daemon that was replaced.
		earlier.Holdings[0].MPSGeneration = 7
		e.driver.returnPartition(t.Context(), configured, earlier)
		untilPartitions(t, control, 1)
		e.end(cfg)
		untilPartitions(t, control)
	})
}

func TestTaskWithoutAPartitionDoesNotStart(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		control := partitioner(t, n)
		must.NoError(t, os.WriteFile(filepath.Join(control.PipeDir, "behavior"), []byte("crash\n"), 0o644))
		cfg := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0))
		_, _, err := e.harness.StartTask(cfg)
		must.ErrorContains(t, err, "the task gets no multiprocessors of its own")
		must.True(t, structs.IsRecoverable(err))
		must.True(t, strings.Contains(err.Error(), gpuA))
		e.nothingLeft()
	})
}
