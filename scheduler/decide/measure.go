package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Measured takes the measurements of a node. Placement hears of them only
// when a GPU's use changed by the configured threshold, since every change
// costs it a new look at the node.
func (b *Book) Measured(node string, m nomad.Measurements) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.measured[node] = m
	b.version++
	n := b.nodes[node]
	if n == nil {
		return
	}
	seen := b.withMeasurements(n)
	if !b.noticeable(n, seen) {
		seen.Plan = n.Plan
		b.nodes[node] = seen
		return
	}
	b.node(n)
}

// withMeasurements is a node with what was measured last on its GPUs.
func (b *Book) withMeasurements(n *nomad.Node) *nomad.Node {
	m := b.measured[n.Plan.ID]
	if len(m) == 0 {
		return n
	}
	out := *n
	out.Plan.GPUs = slices.Clone(n.Plan.GPUs)
	out.View.GPUs = slices.Clone(n.View.GPUs)
	for i := range out.Plan.GPUs {
		v, ok := m[out.Plan.GPUs[i].ID]
		if !ok {
			continue
		}
		out.View.GPUs[i].Measured = v
		if b.config.Placement.Weights.MeasuredMilli == 0 {
			continue // to the planner, GPUs do not differ in what it does not read
		}
		out.Plan.GPUs[i].MeasuredMilli = or(v.Milli, view.Unmeasured, place.Unmeasured)
		out.Plan.GPUs[i].MeasuredMemoryMiB = or(v.MemoryMiB, view.Unmeasured, place.Unmeasured)
	}
	return &out
}

func or(v, unknown, otherwise int64) int64 {
	if v == unknown {
		return otherwise
	}
	return v
}

// noticeable reports whether any GPU's use differs by the threshold.
func (b *Book) noticeable(before, after *nomad.Node) bool {
	for i := range after.Plan.GPUs {
		x, y := &before.Plan.GPUs[i], &after.Plan.GPUs[i]
		memory := int64(0)
		if y.MemoryMiB > 0 {
			memory = (y.MeasuredMemoryMiB - x.MeasuredMemoryMiB) * gpu.MilliPerGPU / y.MemoryMiB
		}
		if max(distance(x.MeasuredMilli, y.MeasuredMilli), distance(memory, 0)) >= max(1, b.config.ChangeThresholdMilli) {
			return true
		}
	}
	return false
}

func distance(x, y int64) int64 { return max(x-y, y-x) }

// GPUNodes lists the nodes that are up and have GPUs.
func (b *Book) GPUNodes() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []string
	for _, id := range b.nodeIDs() {
		if n := b.nodes[id]; len(n.Plan.GPUs) > 0 && n.View.Status == "ready" {
			ids = append(ids, id)
		}
	}
	return ids
}
