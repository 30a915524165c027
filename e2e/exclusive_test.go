// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// A GPU with an MPS daemon lets in nothing else, but for a task that has all of it.
func TestExclusiveComputeMode(t *testing.T) {
	t.Parallel()
	const open, exclusive = 0, 3 // NVML's numbers
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced, MPS: "exclusive = true"})
	node := c.Nodes[0]

	part := run(t, ctx, c, jobSpec{id: "part", devices: slicesOf(8)})
	uuid := onlyGPU(t, c, part)
	if mode := computeMode(t, node, uuid); mode != exclusive {
		t.Errorf("beside a task with slices the compute mode is %d", mode)
	}
	stop(t, ctx, c, "part")

	all := run(t, ctx, c, jobSpec{id: "all", devices: slicesOf(79), config: exitsOnSignal, group: restartsAtOnce})
	report(t, ctx, c, all)
	if mode := computeMode(t, node, uuid); mode != open {
		t.Errorf("beside a task with all slices the compute mode is %d", mode)
	}
	// It is started again in its place, also when the device plugin was meanwhile.
	if err := restarted(ctx, node, node.KillDevicePlugin, "nomad-device-gpu"); err != nil {
		t.Fatal(err)
	}
	task := survivor{alloc: all}
	task.signal(t, ctx, c)
	if _, err := c.WaitAlloc(ctx, all.ID, "to start again", func(a *api.Allocation) bool {
		return starts(a) == 2 && a.TaskStates["task"].State == "running"
	}); err != nil {
		t.Fatal(err)
	}
	if mode := computeMode(t, node, uuid); mode != open {
		t.Errorf("after its restart the compute mode is %d", mode)
	}
	stop(t, ctx, c, "all")

	run(t, ctx, c, jobSpec{id: "next", devices: slicesOf(1)})
	if mode := computeMode(t, node, uuid); mode != exclusive {
		t.Errorf("beside the next task with slices the compute mode is %d", mode)
	}
}

// computeMode is what the simulated hardware keeps.
func computeMode(t *testing.T, n *cluster.Node, uuid string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(n.SimDir(), "hardware.json"))
	if err != nil {
		t.Fatal(err)
	}
	var hardware struct {
		GPUs map[string]struct {
			ComputeMode int `json:"compute_mode"`
		} `json:"gpus"`
	}
	if err := json.Unmarshal(text, &hardware); err != nil {
		t.Fatal(err)
	}
	return hardware.GPUs[uuid].ComputeMode
}
