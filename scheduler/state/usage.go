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
		Priority: r.PriorityOf(a.Key()), Start: a.Created, WorkSaved: r.workSaved(a), Pinned: !r.Evictable(a),
		Spent: !r.BudgetLeft(a, true),
	}
	if len(a.Devices) == 0 {
		return u
	}
	if r.IsGang(a.Key(), a.Group) {
		u.Gang = a.Key().String()
	}
	if q := r.QueueOf(a.Key(), a.Group); q != nil {
		u.Queue, u.Priority = q.Name, min(u.Priority, q.MaxPriority)
		u.MinRun = r.config.Preemption.MinRunTime
		if q.MinRunTime != nil {
			u.MinRun = *q.MinRunTime
		}
	} else {
		u.MinRun = r.config.Preemption.MinRunTime
	}
	if n := r.nodes[a.NodeID]; n != nil {
		u.Takes = r.takes(a, n)
	}
	u.SeatPriority = r.seatPriority(a)
	if u.Idle = r.idles(a); u.Idle {
		_, action := r.IdleRule(a)
		u.Reclaim = action == config.IdleEvict
	}
	j := r.jobs[a.Key()]
	u.Ends = a.Stopping || j != nil && j.Type == "batch"
	return u
}

// seatPriority is the highest that a task of an alloc gives its seat; 0: none says one.
func (r *Reader) seatPriority(a *nomad.Alloc) (highest int) {
	for _, d := range a.Devices {
		if t := r.task(a, d.Task); t != nil {
			highest = max(highest, t.SeatPriority)
		}
	}
	return highest
}

// DefaultPriority is Nomad's.
const DefaultPriority = 50

// PriorityOf is the priority of a job.
func (r *Reader) PriorityOf(key nomad.JobKey) int {
	if j := r.jobs[key]; j != nil {
		return j.Priority
	}
	return DefaultPriority
}

// takes adds up what an alloc holds, per GPU. Devices that the node does not
// list any more are left out.
func (r *Reader) takes(a *nomad.Alloc, n *nomad.Node) []place.Take {
	perGPU := map[int]place.Take{}
	for _, d := range a.Devices {
		count := map[int]int64{}
		for _, id := range d.IDs {
			if at, ok := n.Links[id]; ok {
				count[at.GPU]++
			}
		}
		guarantee := r.Guarantee(a, d.Task)
		for at, k := range count {
			t := perGPU[at]
			t.GPU = at
			add := TakeOf(&n.Plan.GPUs[at], k, guarantee)
			t.Milli, t.Slices, t.Replicas = t.Milli+add.Milli, t.Slices+add.Slices, t.Replicas+add.Replicas
			t.Expected += r.expectedUse(a, d.Task, &n.Plan.GPUs[at], promisedOf(&n.Plan.GPUs[at], add))
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

// TakeOf is what so many instances of a GPU are, with the compute that was
// asked for, or in proportion (0).
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

// Guarantee is the compute that a task asks for expressly, 0 for none: what it told its
// node last, or what its job says.
func (r *Reader) Guarantee(a *nomad.Alloc, task string) int64 {
	if milli, told := a.Compute[task]; told {
		return milli
	}
	if t := r.task(a, task); t != nil {
		return t.GuaranteeMilli
	}
	return 0
}

// Limit is the compute ceiling of a task, 0 for none.
func (r *Reader) Limit(a *nomad.Alloc, task string) int64 {
	if t := r.task(a, task); t != nil {
		return t.LimitMilli
	}
	return 0
}

// task is a task of an alloc as it is registered; nil where it is not any more.
func (r *Reader) task(a *nomad.Alloc, name string) *nomad.Task {
	if g := r.group(a.Key(), a.Group); g != nil {
		return g.Task(name)
	}
	return nil
}

// group is a group as it is registered; nil: there is none.
func (r *Reader) group(key nomad.JobKey, name string) *nomad.Group {
	if j := r.jobs[key]; j != nil {
		return j.Group(name)
	}
	return nil
}

// IsGang reports whether a group is part of its job's gang.
func (r *Reader) IsGang(key nomad.JobKey, group string) bool {
	g := r.group(key, group)
	return g != nil && g.Gang
}

// QueueOf is the queue that pays for a group of a known job; nil: none.
func (r *Reader) QueueOf(key nomad.JobKey, group string) *config.Queue {
	named := ""
	if g := r.group(key, group); g != nil {
		named = g.Queue
	}
	q, err := r.config.QueueFor(key.Namespace, named)
	if err != nil {
		// Submitted around the service with a queue that it may not use: its
		// namespace pays.
		q, _ = r.config.QueueFor(key.Namespace, "")
	}
	return q
}

// Stoppable reports whether an alloc may be stopped at all: work with GPUs that
// does not end already, and does not come back at once as that of system jobs does.
func (r *Reader) Stoppable(a *nomad.Alloc) bool {
	j := r.jobs[a.Key()]
	return !a.Stopping && len(a.Devices) > 0 && j != nil && (j.Type == "service" || j.Type == "batch")
}

// Evictable reports whether an alloc may have to make room for another. What was
// dispatched cannot be kept off the room that it gave, and would take it back. While
// canaries of its group wait for promotion, none does: the change that keeps the
// group off its node would end the deployment, and with it the choice whether the
// new version is to replace the old one.
func (r *Reader) Evictable(a *nomad.Alloc) bool {
	if !r.Stoppable(a) || r.Unchangeable(a.Key()) || !r.BudgetLeft(a, false) {
		return false
	}
	for _, sibling := range r.byJob[a.Key()] {
		if sibling.Canary && sibling.Group == a.Group && !sibling.Stopping {
			return false
		}
	}
	return true
}
