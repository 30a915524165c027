// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// Where NVIDIA's driver can, it holds a task's control group to the memory of its slices,
// and lends it what its neighbors leave, whoever is killed meanwhile, until it ends.
func TestDriverHoldsTasksToTheirMemory(t *testing.T) {
	t.Parallel()
	topology := filepath.Join(t.TempDir(), "machine.hcl")
	if err := os.WriteFile(topology, []byte("machine \"m\" {\n  driver = \"615.71.09\"\n  cuda = \"13.4\"\n}\ngpu {\n  model = \"H100\"\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, c := start(t, cluster.NodeOptions{Topology: topology, GPUs: sliced})
	node := c.Nodes[0]
	const burst = "gpu {\n  memory_limit = \"10GiB\"\n}\n"
	// What the machine lacks is said before it has it.
	register(t, ctx, c, jobSpec{id: "refused", devices: slicesOf(8), config: burst, group: noRestart})
	failed, err := c.WaitAllocs(ctx, "refused", "to fail", func(a *api.AllocationListStub) bool {
		return a.ClientStatus == api.AllocClientStatusFailed
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if status := nomad(t, ctx, c, "alloc", "status", failed[0].ID); !strings.Contains(status, "gpu.memory_limit: 10G cannot be held on GPU") {
		t.Errorf("on a node without cgroup v2 nomad alloc status says:\n%s", status)
	}
	if err := sim.WriteControl(node.SimDir(), sim.Control{Unified: true}); err != nil {
		t.Fatal(err)
	}
	if err := node.WaitNode(ctx, isEnforced); err != nil {
		t.Fatal(err)
	}

	alloc := run(t, ctx, c, jobSpec{id: "held", devices: slicesOf(8), config: exitsOnSignal + "\n" + burst, group: restartsAtOnce})
	uuid := onlyGPU(t, c, alloc)
	if env := report(t, ctx, c, alloc).Env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]; env != "0=10240M" {
		t.Errorf("MPS's limit is %s", env)
	}
	waitMemoryLimits(t, ctx, node, uuid, sim.MemoryLimits{Soft: 8 << 30, Hard: 10 << 30})
	for _, kill := range []func() error{
		func() error { return errors.Join(node.KillClient(), node.StartClient(ctx)) },
		func() error { return restarted(ctx, node, node.KillDevicePlugin, "nomad-device-gpu") },
		func() error { return restarted(ctx, node, node.KillDriverPlugin, "nomad-driver-containerd") },
	} {
		if err := kill(); err != nil {
			t.Fatal(err)
		}
		if err := node.WaitNode(ctx, cluster.Ready); err != nil {
			t.Fatal(err)
		}
		waitMemoryLimits(t, ctx, node, uuid, sim.MemoryLimits{Soft: 8 << 30, Hard: 10 << 30})
	}
	if err := node.WaitNode(ctx, isEnforced); err != nil {
		t.Fatal(err)
	}
	// What starts again in its place is held again, in a control group of its own.
	before, err := c.Alloc(ctx, alloc.ID)
	if err != nil {
		t.Fatal(err)
	}
	for {
		// A driver that was killed takes signals again when the client has found it.
		if err := c.API.Allocations().Signal(alloc, (&api.QueryOptions{}).WithContext(ctx), "task", "SIGUSR1"); err == nil {
			break
		} else if ctx.Err() != nil || !strings.Contains(err.Error(), "plugin is shut down") {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	if _, err := c.WaitAlloc(ctx, alloc.ID, "to start again", func(a *api.Allocation) bool {
		return a.TaskStates["task"].Restarts > before.TaskStates["task"].Restarts && a.TaskStates["task"].State == "running"
	}); err != nil {
		t.Fatal(err)
	}
	waitMemoryLimits(t, ctx, node, uuid, sim.MemoryLimits{Soft: 8 << 30, Hard: 10 << 30})
	// Without a limit of its own a task has its slices, and nothing is guaranteed to one
	// that has ended.
	stop(t, ctx, c, "held")
	run(t, ctx, c, jobSpec{id: "next", devices: slicesOf(4)})
	waitMemoryLimits(t, ctx, node, uuid, sim.MemoryLimits{Soft: 4 << 30, Hard: 4 << 30})
	stop(t, ctx, c, "next")
	waitMemoryLimits(t, ctx, node, uuid)
}

// isEnforced reports whether a node's devices are healthy and their memory is held.
func isEnforced(n *api.Node) bool {
	return cluster.AllHealthy(n) && slices.ContainsFunc(n.NodeResources.Devices, func(d *api.NodeDeviceResource) bool {
		grade := d.Attributes["grade"]
		return grade != nil && grade.StringVal != nil && *grade.StringVal == "enforced"
	})
}

// waitMemoryLimits waits until the driver guarantees memory of a GPU to just these.
func waitMemoryLimits(t *testing.T, ctx context.Context, n *cluster.Node, uuid string, want ...sim.MemoryLimits) {
	t.Helper()
	limit := time.After(2 * time.Minute)
	for {
		set, err := sim.ReadMemoryLimits(n.SimDir())
		if err != nil {
			t.Fatal(err)
		}
		maps.DeleteFunc(set[uuid], func(_ string, l sim.MemoryLimits) bool { return l.Soft == 0 })
		if slices.Equal(slices.Collect(maps.Values(set[uuid])), want) {
			return
		}
		select {
		case <-limit:
			t.Fatalf("the driver holds %+v, not %+v", set[uuid], want)
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
