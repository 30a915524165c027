// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

func TestTwoDeviceBlocksGiveTwoWholeSlicedGPUs(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 2), GPUs: sliced})
	alloc := run(t, ctx, c, jobSpec{id: "two", devices: slicesOf(79) + slicesOf(79)})
	held := holdings(t, c, alloc)
	if len(held) != 2 || held[0].UUID == held[1].UUID || len(held[0].Slices) != 79 || len(held[1].Slices) != 79 {
		t.Errorf("the task holds %+v", held)
	}
	r := report(t, ctx, c, alloc)
	if open := r.Opens(); len(open) != 2 {
		t.Errorf("it opens GPUs %v, want two", open)
	}
	if r.MemoryLimit != "" {
		t.Errorf("it holds all of both GPUs, and is limited to %s", r.MemoryLimit)
	}
	checkBooking(t, ctx, c)
}

func TestTwoDeviceBlocksOnOneGPUAddUp(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	alloc := run(t, ctx, c, jobSpec{id: "two", devices: slicesOf(8) + slicesOf(4)})
	held := holdings(t, c, alloc)
	if len(held) != 1 || len(held[0].Slices) != 12 || held[0].MemoryMiB != 12*1024 {
		t.Errorf("the task holds %+v", held)
	}
	if limit := report(t, ctx, c, alloc).MemoryLimit; limit != "0=12288M" {
		t.Errorf("the memory limit is %s", limit)
	}
	checkBooking(t, ctx, c)
}
