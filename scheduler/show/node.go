// SPDX-License-Identifier: MPL-2.0

package show

import (
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// holders groups the allocs with GPUs by node.
func holders(r *state.Reader) map[string][]*nomad.Alloc {
	found := map[string][]*nomad.Alloc{}
	for a := range r.Cluster.Allocs() {
		if len(a.Devices) > 0 {
			found[a.NodeID] = append(found[a.NodeID], a)
		}
	}
	for _, list := range found {
		slices.SortFunc(list, func(x, y *nomad.Alloc) int { return strings.Compare(x.ID, y.ID) })
	}
	return found
}

func node(r *state.Reader, id string, holders []*nomad.Alloc) view.Node {
	n := r.Cluster.Node(id)
	v := n.View
	for _, u := range r.Capacity.UsagesOn(id) {
		v.CPUUsedMHz += u.CPUMHz
		v.MemoryUsedMiB += u.MemoryMiB
	}
	v.GPUs = slices.Clone(n.View.GPUs)
	for i := range v.GPUs {
		v.GPUs[i].Holders = []view.Holder{}
	}
	for _, a := range holders {
		hold(r, n, &v, a)
	}
	for i := range v.GPUs {
		v.GPUs[i].HeldMilli = min(v.GPUs[i].HeldMilli, gpu.MilliPerGPU)
	}
	return v
}

// hold enters what an alloc holds into the node's GPUs.
func hold(r *state.Reader, n *nomad.Node, v *view.Node, a *nomad.Alloc) {
	queue := ""
	if q := r.Cluster.QueueOf(a.Key(), a.Group); q != nil {
		queue = q.Name
	}
	for _, h := range r.Capacity.Holdings(a) {
		g := &v.GPUs[h.Position]
		if len(g.Holders) == 0 { // until then they are the node's own
			g.Instances = slices.Clone(g.Instances)
		}
		for _, id := range h.Instances {
			at, _ := n.Slot(id)
			in := &g.Instances[at.Instance]
			in.AllocID, in.Task = a.ID, h.Task
		}
		g.HeldMilli += h.Milli
		g.HeldMemoryMiB += h.MemoryMiB
		g.HeldInstances += len(h.Instances)
		g.Holders = append(g.Holders, view.Holder{
			AllocID: a.ID, Namespace: a.Namespace, JobID: a.Job, Group: a.Group, Task: h.Task, Queue: queue,
			Priority: r.Cluster.PriorityOf(a.Key()), Status: a.Status, Instances: len(h.Instances), MemoryMiB: h.MemoryMiB, GuaranteeMilli: h.Milli,
			LimitMilli: h.LimitMilli, Since: a.Created, Direct: r.Queue.Direct(a.Key()), Use: use(r, a, &h),
		})
	}
}

// use is what a task was measured to use; nil where that is not known.
func use(r *state.Reader, a *nomad.Alloc, h *state.Holding) *view.Use {
	told, known := r.Cluster.UseOf(a.NodeID, h.GPU.ID, h.Instances[0], h.Alone())
	if !known {
		return nil
	}
	after, action := r.Cluster.QueueOf(a.Key(), a.Group).IdleRule()
	u := &view.Use{At: told.At, Milli: told.Milli, MemoryMiB: told.MemoryMiB, Seat: string(told.Seat), SeatSince: told.SeatSince, SeatFirst: told.SeatFirst, SeatWhy: told.SeatWhy, UnusedSince: r.Cluster.UnusedSince(a, h)}
	if u.Idle = !u.UnusedSince.IsZero() && r.Now().Sub(u.UnusedSince) >= after; u.Idle {
		u.Action = action
	}
	return u
}
