package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// usageOf is what an alloc holds of its node.
func (b *Book) usageOf(a *nomad.Alloc) place.Usage {
	u := place.Usage{
		ID: a.ID, NodeID: a.NodeID, Job: a.Job, Namespace: a.Namespace, CPUMHz: a.CPUMHz, MemoryMiB: a.MemoryMiB,
		Priority: b.priorityOf(a.Key()), Start: a.Created, Pinned: !b.evictable(a),
	}
	if len(a.Devices) == 0 {
		return u
	}
	if b.isGang(a.Key(), a.Group) {
		u.Gang = a.Key().String()
	}
	if q := b.queueOf(a.Key(), a.Group); q != nil {
		u.Queue, u.Priority = q.Name, min(u.Priority, q.MaxPriority)
		u.MinRun = b.config.Preemption.MinRunTime
		if q.MinRunTime != nil {
			u.MinRun = *q.MinRunTime
		}
	} else {
		u.MinRun = b.config.Preemption.MinRunTime
	}
	if n := b.nodes[a.NodeID]; n != nil {
		u.Takes = b.takes(a, n)
	}
	return u
}

const defaultPriority = 50 // Nomad's

func (b *Book) priorityOf(key nomad.JobKey) int {
	if j := b.jobs[key]; j != nil {
		return j.Priority
	}
	return defaultPriority
}

// takes adds up what an alloc holds, per GPU. Devices that the node does not
// list any more are left out.
func (b *Book) takes(a *nomad.Alloc, n *nomad.Node) []place.Take {
	perGPU := map[int]place.Take{}
	for _, d := range a.Devices {
		count := map[int]int64{}
		for _, id := range d.IDs {
			if at, ok := n.Links[id]; ok {
				count[at.GPU]++
			}
		}
		guarantee := b.guarantee(a, d.Task)
		for at, k := range count {
			t := perGPU[at]
			t.GPU = at
			add := takeOf(&n.Plan.GPUs[at], k, guarantee)
			t.Milli, t.Slices, t.Replicas = t.Milli+add.Milli, t.Slices+add.Slices, t.Replicas+add.Replicas
			perGPU[at] = t
		}
	}
	out := make([]place.Take, 0, len(perGPU))
	for _, t := range perGPU {
		t.Milli = min(t.Milli, gpu.MilliPerGPU)
		out = append(out, t)
	}
	slices.SortFunc(out, func(x, y place.Take) int { return x.GPU - y.GPU })
	return out
}

// takeOf is what so many instances of a GPU are, with the compute that was
// asked for, or in proportion (0).
func takeOf(g *place.GPU, instances, guarantee int64) place.Take {
	switch g.Mode {
	case gpu.ModeSlice:
		t := place.Take{Slices: instances, Milli: guarantee}
		if t.Milli == 0 || instances == g.Slices {
			t.Milli = proportion(instances, g.Slices)
		}
		return t
	case gpu.ModeShared:
		return place.Take{Replicas: instances}
	}
	return place.Take{Milli: gpu.MilliPerGPU}
}

// proportion is the compute that goes with slices when nothing else was said.
// It is rounded down, so that the slices of a GPU never add up to more than it.
func proportion(instances, of int64) int64 {
	if of == 0 {
		return 0
	}
	return min(gpu.MilliPerGPU, instances*gpu.MilliPerGPU/of)
}

// guarantee is the compute that a task asks for expressly, 0 for none.
func (b *Book) guarantee(a *nomad.Alloc, task string) int64 {
	j := b.jobs[a.Key()]
	if j == nil {
		return 0
	}
	if g := j.Group(a.Group); g != nil {
		if t := g.Task(task); t != nil {
			return t.GuaranteeMilli
		}
	}
	return 0
}
