// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// What Nomad's commands show of two sliced GPUs, one of which is at fault, and of a task on the
// other: each GPU's figures stand once, and once more with the task; the fault stands with its
// group; the task's events, files, output and exec are there; a job too large is told so.
func TestNomadsOwnScreens(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 2), GPUs: sliced})
	n := c.Nodes[0]
	alloc := run(t, ctx, c, jobSpec{id: "shown", devices: slicesOf(8)})
	report(t, ctx, c, alloc)
	used := onlyGPU(t, c, alloc)
	state, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	states, err := state.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	ill := ""
	for _, s := range states {
		if s.UUID != used {
			ill = s.UUID
		}
	}
	if err := sim.Update(n.SimDir(), ill, func(c *sim.Condition) { c.XIDs, c.ProbeFails = append(c.XIDs, 79), true }); err != nil {
		t.Fatal(err)
	}
	node := ""
	within(ctx, t, "the fault is shown", func() bool {
		node = nomad(t, ctx, c, "node", "status", "-verbose", n.ID)
		return strings.Contains(node, "unique.unhealthy")
	})
	for _, want := range []string{"containerd  ", "nvidia/slice/H100/0", "nvidia/slice/H100/1", ill + ": xid-79: ", "driver.containerd.version", "healthy            = 0", "healthy            = 79"} {
		if !strings.Contains(node, want) {
			t.Errorf("nomad node status -verbose does not show %q:\n%s", want, node)
		}
	}
	// The summary of each of 8 slices, the figures once, and the task with each other slice.
	shown := ""
	within(ctx, t, "the task is measured", func() bool {
		shown = nomad(t, ctx, c, "alloc", "status", "-stats", alloc.ID)
		return strings.Count(shown, "Task memory ") == 8
	})
	for want, count := range map[string]int{"Power usage ": 1, "GPU utilization ": 1, "/ 1024 MiB": 9, "GPU share: GPU " + used + ", 8G memory, compute 0.101": 1} {
		if strings.Count(shown, want) != count {
			t.Errorf("nomad alloc status -stats shows %q %d times, want %d:\n%s", want, strings.Count(shown, want), count, shown)
		}
	}
	stats := nomad(t, ctx, c, "node", "status", "-stats", n.ID)
	if blocks, figures := strings.Count(stats, "= nvidia/slice"), strings.Count(stats, "Power usage "); blocks > 10 || figures > 3 {
		t.Errorf("nomad node status -stats has %d instances, and the figures of a GPU %d times:\n%s", blocks, figures, stats)
	}
	for want, args := range map[string][]string{
		`"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT":"0=8192M"`: {"alloc", "logs", alloc.ID},
		"8G of memory, compute 0.101":                  {"alloc", "exec", alloc.ID, "nomad-gpu-self", "status"},
		"task/":                                        {"alloc", "fs", alloc.ID},
		"Running  ":                                    {"job", "status", "shown"},
	} {
		if got := nomad(t, ctx, c, args...); !strings.Contains(got, want) {
			t.Errorf("nomad %s does not show %q:\n%s", strings.Join(args, " "), want, got)
		}
	}
	register(t, ctx, c, jobSpec{id: "large", devices: slicesOf(80)})
	within(ctx, t, "the placement failure is shown", func() bool {
		status := nomad(t, ctx, c, "job", "status", "large")
		return strings.Contains(status, "Placement Failure") && strings.Contains(status, "devices")
	})
}
