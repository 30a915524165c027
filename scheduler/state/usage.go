// SPDX-License-Identifier: MPL-2.0

package state

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// usageOf is what an alloc holds of its node.
func (r *Reader) usageOf(a *nomad.Alloc) place.Usage {
	u := place.Usage{
		ID: a.ID, NodeID: a.NodeID, Job: a.Job, Namespace: a.Namespace, CPUMHz: a.CPUMHz, MemoryMiB: a.MemoryMiB,
		Priority: r.Cluster.PriorityOf(a.Key()), Start: a.Created, WorkSaved: r.Cluster.checkpoints.workSaved(a), Pinned: !r.Capacity.Evictable(a),
		Spent: !r.Capacity.BudgetLeft(a, true), Repeats: r.Queue.completions.of[a.Key()].booked,
		Stops: min(r.Cluster.stopTime(a), LongestStop),
	}
	if len(a.Devices) == 0 {
		return u
	}
	if r.Cluster.IsGang(a.Key(), a.Group) {
		u.Gang = a.Key().String()
	}
	u.MinRun = r.Config().Preemption.MinRunTime
	if q := r.Cluster.QueueOf(a.Key(), a.Group); q != nil {
		u.Queue, u.Priority = q.Name, min(u.Priority, q.MaxPriority)
		if q.MinRunTime != nil {
			u.MinRun = *q.MinRunTime
		}
	}
	u.Takes = r.takesOf(a)
	u.SeatPriority = r.Cluster.jobs.seatPriority(a)
	if u.Idle = r.Cluster.unused.idles(a); u.Idle {
		_, action := r.Cluster.QueueOf(a.Key(), a.Group).IdleRule()
		u.Reclaim = action == config.IdleEvict
	}
	j := r.Cluster.Job(a.Key())
	u.Ends = a.Stopping || j != nil && j.Type == "batch"
	return u
}

// takesOf is what an alloc holds, per GPU; nothing where its node is not known.
func (r *Reader) takesOf(a *nomad.Alloc) []place.Take {
	if n := r.Cluster.Node(a.NodeID); n != nil {
		return r.takes(a, n)
	}
	return nil
}

// takes adds up what an alloc holds, per GPU. Devices that the node does not
// list any more are left out.
func (r *Reader) takes(a *nomad.Alloc, n *nomad.Node) []place.Take {
	perGPU := map[int]place.Take{}
	for _, d := range a.Devices {
		count := map[int]int64{}
		for _, id := range d.IDs {
			if at, ok := n.Slot(id); ok {
				count[at.GPU]++
			}
		}
		guarantee := r.Cluster.guarantee(a, d.Task)
		for at, k := range count {
			t := perGPU[at]
			t.GPU = at
			add := TakeOf(&n.Plan.GPUs[at], k, guarantee)
			t.Milli, t.Slices, t.Replicas = t.Milli+add.Milli, t.Slices+add.Slices, t.Replicas+add.Replicas
			t.Expected += r.Cluster.learned.expectedUse(a, d.Task, &n.Plan.GPUs[at], promisedOf(&n.Plan.GPUs[at], add))
			perGPU[at] = t
		}
	}
	out := make([]place.Take, 0, len(perGPU))
	for _, t := range perGPU {
		t.Milli, t.Expected = min(t.Milli, gpu.MilliPerGPU), min(t.Expected, gpu.MilliPerGPU)
		if t.Expected <= promisedOf(&n.Plan.GPUs[t.GPU], t) {
			t.Expected = 0
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(x, y place.Take) int { return x.GPU - y.GPU })
	return out
}

// costOf is what an alloc costs its queue, also where its node is gone.
func (r *Reader) costOf(a *nomad.Alloc) place.Charge {
	if n := r.Cluster.Node(a.NodeID); n != nil {
		return r.Capacity.Charge(a.NodeID, r.takes(a, n))
	}
	if known := r.Queue.Record(a.Key()); known != nil {
		return known.Groups[a.Group].Cost
	}
	return place.Charge{}
}
