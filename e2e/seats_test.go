// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// seats makes the GPUs of a node ones whose tasks step aside for each other.
const seats = `
mode     = "shared"
sharing  = "suspend"
replicas = 5
suspend {
  host_memory  = "400GiB"
  min_turn     = "1s"
  idle         = "1h"
  max_priority = 90
}
health { measure = "300ms" }
`

const oneSeat = "device \"nvidia/shared\" {}\n"

// sitter is a task with a seat, and a process that holds GPU memory.
type sitter struct {
	survivor
	lease string
}

// startSitter runs a task with a seat, whose process takes memory of the GPU.
func startSitter(t *testing.T, ctx context.Context, c *cluster.Cluster, id string, priority int, memoryMiB uint64) sitter {
	t.Helper()
	node := c.Nodes[0]
	before := programs(t, node)
	alloc := run(t, ctx, c, jobSpec{id: id, devices: oneSeat, config: fmt.Sprintf("gpu {\n memory = \"%dMiB\"\n priority = %q\n}", memoryMiB, fmt.Sprint(priority))})
	report(t, ctx, c, alloc)
	s := sitter{lease: gpu.LeaseID(alloc.ID, "task")}
	s.alloc, s.uuid = alloc, onlyGPU(t, c, alloc)
	for _, pid := range programs(t, node) {
		if !slices.Contains(before, pid) {
			s.pids = append(s.pids, pid)
		}
	}
	if len(s.pids) == 0 {
		t.Fatalf("job %s has no process", id)
	}
	err := sim.Update(node.SimDir(), s.uuid, func(condition *sim.Condition) {
		inside, err := pidInMachine(s.pids[0])
		if err != nil {
			t.Fatal(err)
		}
		condition.Processes = append(condition.Processes, sim.Process{PID: uint32(inside), MemoryMiB: memoryMiB, Percent: 20})
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// awaitSeats waits until the tasks are in a state.
func awaitSeats(t *testing.T, ctx context.Context, n *cluster.Node, uuid string, want map[string]gpu.SeatState) {
	t.Helper()
	dir, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for {
		all, err := dir.Seats(uuid)
		good := 0
		for _, s := range all.Seats {
			if s.State == want[s.LeaseID] && (s.State != gpu.SeatResident || s.MemoryMiB > 0) {
				good++
			}
		}
		if err == nil && good == len(want) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the seats are %+v, wanted %v", all.Seats, want)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Four notebooks are on one GPU. A task of higher priority arrives, has the GPU, and
// ends; the driver dies meanwhile. No task is killed: all go on where they were, told
// what happened to them.
func TestTasksStepAsideAndComeBack(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: seats})
	node := c.Nodes[0]
	notebooks, here, away := []sitter{}, map[string]gpu.SeatState{}, map[string]gpu.SeatState{}
	for n := range 4 {
		s := startSitter(t, ctx, c, fmt.Sprintf("notebook-%d", n), 50, 18<<10)
		notebooks = append(notebooks, s)
		here[s.lease], away[s.lease] = gpu.SeatResident, gpu.SeatSuspended
	}
	uuid := notebooks[0].uuid
	awaitSeats(t, ctx, node, uuid, here)

	training := startSitter(t, ctx, c, "training", 80, 70<<10)
	away[training.lease] = gpu.SeatResident
	awaitSeats(t, ctx, node, uuid, away)
	states, err := sim.ReadProcessStates(node.SimDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range notebooks {
		inside, err := pidInMachine(s.pids[0])
		if err != nil || states[inside] != gpu.ProcessCheckpointed {
			t.Errorf("the process of %s is %q, %v", s.alloc.JobID, states[inside], err)
		}
		if _, err := c.WaitAlloc(ctx, s.alloc.ID, "to say that it is suspended", says("suspended, its 18432 MiB of GPU memory moved to the host: a task of higher priority wants the GPU (80, this one has 50), for "+training.lease)); err != nil {
			t.Error(err)
		}
	}
	if err := restarted(ctx, node, node.KillDriverPlugin, "nomad-driver-containerd"); err != nil {
		t.Fatal(err)
	}
	stop(t, ctx, c, "training")
	err = sim.Update(node.SimDir(), uuid, func(condition *sim.Condition) {
		condition.Processes = slices.DeleteFunc(condition.Processes, func(p sim.Process) bool { return p.MemoryMiB == 70<<10 })
	})
	if err != nil {
		t.Fatal(err)
	}
	awaitSeats(t, ctx, node, uuid, here)
	for _, s := range notebooks {
		alloc, err := c.WaitAlloc(ctx, s.alloc.ID, "to say that it is back", says("back on the GPU with its 18432 MiB of GPU memory"))
		if err != nil {
			t.Fatal(err)
		}
		if alloc.ClientStatus != api.AllocClientStatusRunning || alloc.TaskStates["task"].Restarts != 0 || !slices.Contains(programs(t, node), s.pids[0]) {
			t.Errorf("%s is %s after %d restarts", alloc.JobID, alloc.ClientStatus, alloc.TaskStates["task"].Restarts)
		}
	}
}

func says(what string) func(*api.Allocation) bool {
	return func(a *api.Allocation) bool {
		return slices.ContainsFunc(a.TaskStates["task"].Events, func(e *api.TaskEvent) bool { return strings.Contains(e.DisplayMessage, what) })
	}
}
