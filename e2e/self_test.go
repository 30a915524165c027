// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// self runs nomad-gpu-self in a task, as a user would, while the driver may be coming back.
func self(t *testing.T, ctx context.Context, c *cluster.Cluster, alloc *api.Allocation, want string, args ...string) {
	t.Helper()
	for limit := time.Now().Add(2 * time.Minute); ; {
		cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "e2e", "nomad"),
			append([]string{"alloc", "exec", "-i=false", "-t=false", "-task", "task", alloc.ID, "nomad-gpu-self"}, args...)...)
		cmd.Env = append(os.Environ(), "NOMAD_ADDR="+c.URL)
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), want) {
			return
		}
		if time.Now().After(limit) || ctx.Err() != nil {
			t.Fatalf("nomad-gpu-self %v: %v: %s, which does not say %q", args, err, out, want)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// A task on slices sees its share, gives compute back, which another starts with, and says
// that its work is saved; the driver dies meanwhile.
func TestATaskOnSlicesTalksAboutItsShare(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	node := c.Nodes[0]
	first := run(t, ctx, c, jobSpec{id: "first", devices: slicesOf(16), config: "gpu {\n compute = 700\n}"})
	self(t, ctx, c, first, "16G of memory, compute 0.7", "status")
	self(t, ctx, c, first, "0 tasks, 0M of memory", "status")
	self(t, ctx, c, first, "compute: 0.8 is not valid on GPU GPU-", "resize", "compute=0.8")
	self(t, ctx, c, first, "compute 0.2, at most 0.7", "resize", "compute=0.2")
	second := run(t, ctx, c, jobSpec{id: "second", devices: slicesOf(8), config: "gpu {\n compute = 600\n}"})
	self(t, ctx, c, second, "1 task, ", "status")
	if err := restarted(ctx, node, node.KillDriverPlugin, "nomad-driver-containerd"); err != nil {
		t.Fatal(err)
	}
	self(t, ctx, c, first, "16G of memory, compute 0.2", "status")
	self(t, ctx, c, first, "0.6 of it is promised to other tasks; ask for at most 0.4 ", "resize", "compute=0.7")
	self(t, ctx, c, first, `action: "yield" is not valid on GPU GPU-`, "yield")
	begun := time.Now()
	self(t, ctx, c, first, "noted: the task's work is on disk as of 2", "saved")
	if _, err := c.WaitAlloc(ctx, first.ID, "to say that its work is saved", func(a *api.Allocation) bool {
		return slices.ContainsFunc(a.TaskStates["task"].Events, func(e *api.TaskEvent) bool {
			at, err := time.Parse(time.RFC3339Nano, e.Details[gpu.SavedDetail])
			return err == nil && !at.Before(begun) && !at.After(time.Now())
		})
	}); err != nil {
		t.Fatal(err)
	}
}

// A task with a seat steps aside when it says so, and comes back when it says so.
func TestATaskWithASeatStepsAsideByItself(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: seats})
	node := c.Nodes[0]
	notebook := startSitter(t, ctx, c, "notebook", 50, 18<<10)
	in := func(state gpu.SeatState) {
		t.Helper()
		awaitSeats(t, ctx, node, notebook.uuid, map[string]gpu.SeatState{notebook.lease: state})
	}
	in(gpu.SeatResident)
	self(t, ctx, c, notebook.alloc, "the task leaves its GPU", "yield")
	in(gpu.SeatSuspended)
	self(t, ctx, c, notebook.alloc, "seat       suspended since ", "status")
	if err := restarted(ctx, node, node.KillDriverPlugin, "nomad-driver-containerd"); err != nil {
		t.Fatal(err)
	}
	self(t, ctx, c, notebook.alloc, "it does not want the GPU back now", "status")
	self(t, ctx, c, notebook.alloc, "the task comes back to its GPU", "want")
	in(gpu.SeatResident)
	alloc, err := c.Alloc(ctx, notebook.alloc.ID)
	if err != nil {
		t.Fatal(err)
	}
	if alloc.TaskStates["task"].Restarts != 0 || !slices.Contains(programs(t, node), notebook.pids[0]) {
		t.Errorf("the notebook was restarted %d times", alloc.TaskStates["task"].Restarts)
	}
}
