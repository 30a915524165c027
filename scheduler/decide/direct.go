package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// direct reports whether a job, as it is registered now, came around the
// service: a group that asks for GPUs is not what was recorded about it, or for
// a child about its parent.
func (b *Book) direct(key nomad.JobKey) bool {
	j := b.jobs[key]
	if j == nil {
		return false
	}
	r := b.records[key]
	if r != nil && b.underWayTo(r) {
		return false
	}
	parent := b.parentRecord(j)
	return slices.ContainsFunc(j.Groups, func(g nomad.Group) bool {
		admitted := recorded(r, &g) && !r.Groups[g.Name].Direct
		return g.GPU() && !admitted && !inherited(parent, &g)
	})
}

// parentRecord is what was recorded about the parent of a child; nil for none.
func (b *Book) parentRecord(j *nomad.Job) *Record {
	if j.Parent == "" {
		return nil
	}
	return b.records[nomad.JobKey{Namespace: j.Key.Namespace, ID: j.Parent}]
}

// mayHold reports whether a job may be made to wait for quota although it runs:
// Nomad started it by itself, as a child, or after the service had admitted
// something else; and where the operator wants that, it came around the service.
func (b *Book) mayHold(key nomad.JobKey) bool {
	j := b.jobs[key]
	if j == nil {
		return false
	}
	if j.Parent != "" || j.Marked() && b.direct(key) {
		return true
	}
	return b.config.Preemption.HoldDirect && b.direct(key)
}

// holdersIn lists what the jobs that match hold of a queue and the queues below
// it: the lowest priority first, of equals the youngest.
func (b *Book) holdersIn(queue string, matches func(nomad.JobKey) bool) []place.Usage {
	var list []place.Usage
	for _, a := range b.allocs {
		u, booked := b.snap.Usage(a.ID)
		if booked && len(u.Takes) > 0 && matches(a.Key()) && b.isWithin(u.Queue, queue) {
			list = append(list, u)
		}
	}
	slices.SortFunc(list, func(x, y place.Usage) int {
		return cmp.Or(x.Priority-y.Priority, y.Start.Compare(x.Start), strings.Compare(x.ID, y.ID))
	})
	return list
}

// isWithin reports whether a queue is another or lies below it.
func (b *Book) isWithin(queue, top string) bool {
	for q := b.config.Queue(queue); q != nil; q = b.config.Queue(q.Parent) {
		if q.Name == top {
			return true
		}
	}
	return false
}

// bringBack finds a group that nobody admitted as it is in a queue which holds
// more than its limit, and has it wait for quota as it would have had to in the
// first place: what Nomad started by itself, and with hold_direct_jobs what came
// around the service.
func (b *Book) bringBack(skip map[string]bool) *Due {
	if b.quotas == nil {
		return nil
	}
	for i := range b.config.Queues {
		queue := b.config.Queues[i].Name
		if b.quotas.Excess(b.snap, queue) == (place.Charge{}) {
			continue
		}
		if b.leaves(queue) {
			continue // see first how much is left
		}
		for _, u := range b.holdersIn(queue, b.mayHold) {
			if a := b.allocs[u.ID]; b.stoppable(a) && !skip[a.Key().String()] {
				return b.restraint(a, u.Priority, queue)
			}
		}
	}
	return nil
}

// leaves reports whether work of a queue is about to end: Nomad wants it to, or
// its group was held a moment ago.
func (b *Book) leaves(queue string) bool {
	for _, a := range b.allocs {
		u, booked := b.snap.Usage(a.ID)
		if !booked || len(u.Takes) == 0 || !b.isWithin(u.Queue, queue) {
			continue
		}
		r := b.records[a.Key()]
		if a.Stopping || r != nil && r.Groups[a.Group].Decision.Hold != nil && b.now().Sub(r.At) < aloft {
			return true
		}
	}
	return false
}

// restraint holds the whole group of an alloc: Nomad has no way to hold less.
func (b *Book) restraint(of *nomad.Alloc, priority int, queue string) *Due {
	why := b.overQuota(queue, place.Charge{})
	e := &Eviction{}
	for _, a := range b.allocsOf(of.Key()) {
		together := b.isGang(of.Key(), of.Group) && b.isGang(of.Key(), a.Group)
		if (a.Group == of.Group || together) && b.stoppable(a) {
			e.Victims = append(e.Victims, Victim{AllocID: a.ID, Job: a.Key(), Group: a.Group, Node: a.NodeID, Priority: priority, Queue: queue})
		}
	}
	slices.SortFunc(e.Victims, func(x, y Victim) int { return strings.Compare(x.AllocID, y.AllocID) })
	origin := "which came around the service"
	if !b.direct(of.Key()) {
		origin = "which Nomad started"
	}
	e.Text = fmt.Sprintf("group %s of job %s, %s, must wait: %s", of.Group, of.Key(), origin, why)
	for i := range e.Victims {
		e.Victims[i].Text = e.Text
	}
	return &Due{Job: of.Key(), Evict: e, Revision: Revision{Group: of.Group, Hold: &admit.Hold{Kind: view.WaitsForQuota, Sentence: why}}}
}
