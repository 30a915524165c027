// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Holding is what one task of an alloc holds of one GPU.
type Holding struct {
	Task      string
	GPU       *place.GPU
	Position  int      // of the GPU on its node
	Instances []string // Nomad's device instances
	Milli     int64    // compute that is kept free for it
	// LimitMilli is the compute ceiling of the task; 0: none.
	LimitMilli int64
	// MemoryMiB is memory that is the task's own: none of a GPU that tasks take turns on.
	MemoryMiB int64
	Charge    place.Charge // what counts against a quota
}

// Holdings is what the tasks of an alloc hold. Devices that its node does not list are
// left out.
func (b *books) Holdings(a *nomad.Alloc) []Holding {
	n := b.nodes.Node(a.NodeID)
	if n == nil {
		return nil
	}
	var list []Holding
	for _, d := range a.Devices {
		instances := map[int][]string{}
		for _, id := range d.IDs {
			if at, ok := n.Slot(id); ok {
				instances[at.GPU] = append(instances[at.GPU], id)
			}
		}
		for _, at := range slices.Sorted(maps.Keys(instances)) {
			g := &n.Plan.GPUs[at]
			take := TakeOf(g, int64(len(instances[at])), b.jobs.guarantee(a, d.Task))
			take.GPU = at
			h := Holding{Task: d.Task, GPU: g, Position: at, Instances: instances[at], Milli: take.Milli, Charge: b.Charge(n.Plan.ID, []place.Take{take})}
			if t := b.jobs.task(a, d.Task); t != nil {
				h.LimitMilli = t.LimitMilli
			}
			if g.Mode != gpu.ModeShared {
				h.MemoryMiB = h.Charge.MemoryMiB
			}
			list = append(list, h)
		}
	}
	return list
}

// Alone reports whether the task has all of the GPU, so that the GPU's measured use is its own.
func (h *Holding) Alone() bool {
	return h.GPU.Mode == gpu.ModeWhole || h.GPU.Mode == gpu.ModeSlice && int64(len(h.Instances)) == h.GPU.Slices
}

// TakeOf is a number of instances of a GPU, with the compute that was asked for, or in
// proportion (0).
func TakeOf(g *place.GPU, instances, guarantee int64) place.Take {
	switch g.Mode {
	case gpu.ModeSlice:
		t := place.Take{Slices: instances, Milli: guarantee}
		if t.Milli == 0 || instances == g.Slices {
			t.Milli = Proportion(instances, g.Slices)
		}
		return t
	case gpu.ModeShared:
		return place.Take{Replicas: instances}
	}
	return place.Take{Milli: gpu.MilliPerGPU}
}

// Proportion is the compute that goes with slices when nothing else was said.
// It is rounded down, so that the slices of a GPU never add up to more than it.
func Proportion(instances, of int64) int64 {
	if of == 0 {
		return 0
	}
	return min(gpu.MilliPerGPU, instances*gpu.MilliPerGPU/of)
}

// promisedOf is the compute that a take of a GPU is promised.
func promisedOf(g *place.GPU, t place.Take) int64 {
	if g.Mode == gpu.ModeShared {
		return Proportion(t.Replicas, g.Replicas)
	}
	return t.Milli
}
