// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestSlicesOfOneRequestAreOnOneGPU(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 2), GPUs: sliced})
	// 26 go three times into 79, so six tasks fill both GPUs but for one slice.
	register(t, ctx, c, jobSpec{id: "many", devices: slicesOf(26), count: 6})
	allocs, err := c.RunningAll(ctx, "many", 6)
	if err != nil {
		t.Fatal(err)
	}
	perGPU := map[string]int{}
	for _, alloc := range allocs {
		perGPU[onlyGPU(t, c, alloc)]++
	}
	for uuid, tasks := range perGPU {
		if tasks != 3 {
			t.Errorf("%d tasks of 26 slices are on GPU %s of 79", tasks, uuid)
		}
	}
	checkBooking(t, ctx, c)
}

func TestAllSlicesAreTheWholeGPU(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	alloc := run(t, ctx, c, jobSpec{id: "all", devices: slicesOf(79)})
	held := holdings(t, c, alloc)
	if len(held) != 1 || len(held[0].Slices) != 79 || held[0].Mode != gpu.ModeSlice {
		t.Errorf("the task holds %+v", held)
	}
	r := report(t, ctx, c, alloc)
	for key, value := range r.Env {
		if key != "NVIDIA_VISIBLE_DEVICES" {
			t.Errorf("a task alone on its GPU has %s=%s", key, value)
		}
	}
	if open := r.Opens(); len(open) != 1 {
		t.Errorf("it opens GPUs %v", open)
	}
}
