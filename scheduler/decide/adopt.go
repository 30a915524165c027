// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// known is the decision about the ask: its record, or where that is lost or
// another, the registered one. Only running work is worth keeping as it is.
func (a groupAsk) known(have *record.Record) (record.Group, bool) {
	was, found := have.Groups[a.ask.Group]
	if found && was.Key == a.ask.Key() {
		return was, true
	}
	if j := a.tx.Cluster.Job(a.key); j != nil && a.tx.Cluster.Live(a.key, a.ask.Group) > 0 {
		if g := j.Group(a.ask.Group); g != nil && g.Was != nil && g.Key == a.ask.Key() {
			return a.adopt(g.Was), true
		}
	}
	return record.Group{}, false
}

// adopt makes the record of a group that is known only by its registration.
func (a groupAsk) adopt(was *admit.Earlier) record.Group {
	g := a.unmanaged()
	if was != nil {
		g.Decision = was.Decision(a.ask.Group)
		g.Decision.Explanation = []string{"adopted as it is registered"}
	}
	g.Shown.Summary = g.Decision.Explanation[0]
	j := a.tx.Cluster.Job(a.key)
	g.Direct = j == nil || j.Parent == ""
	for _, alloc := range a.tx.Cluster.AllocsOf(a.key) {
		if u, _ := a.tx.Capacity.Usage(alloc.ID); alloc.Group == a.ask.Group && len(u.Takes) > 0 {
			g.Cost = a.tx.Capacity.Charge(u.NodeID, u.Takes)
		}
	}
	return g
}

// unmanaged is a group as it came, without a preference: every node is looked at.
func (a groupAsk) unmanaged() record.Group {
	d := admit.Decision{Group: a.ask.Group, Tasks: make([]admit.TaskDecision, len(a.ask.Tasks))}
	for i, t := range a.ask.Tasks {
		d.Tasks[i].Task = t.Task
	}
	d.Explanation = []string{"it came around the service; no preference is set"}
	return record.Group{Key: a.ask.Key(), Ask: stored(a.ask), Decision: d, Shown: a.shown(view.Registered, d.Explanation[0])}
}

// align brings the record of a group and its registration together.
// Running allocs keep the device blocks that they run with; waiting ones are decided
// about again; a node that is left out stays so.
func align(tx *state.Tx, key nomad.JobKey, a *admit.Ask, was record.Group) (record.Group, bool) {
	decided := was.Ask.Count
	was.Ask = *a
	was.Ask.Was = nil
	if a.Count > decided && !CanGrow(tx, key, &was, a.Count) {
		was.Ask.Count = decided // what Nomad starts beyond that came around the service
	}
	if len(was.Excluded) > 0 || a.Was == nil {
		return was, false
	}
	if tx.Cluster.Live(key, a.Group) == 0 {
		return was, true
	}
	if may := CanGrow(tx, key, &was, a.Count); may || a.Was.Hold == "" { // else the missing allocs wait on
		was.Direct = was.Direct || was.Decision.Hold != nil && !may // it started in room that others are owed
		was.Decision.Hold = nil
	}
	was.Decision.Tasks = a.Was.Decision(a.Group).Tasks
	return was, false
}

// CanGrow reports whether the queue of a group that runs can pay for count allocs of it, those
// that run already among them, beside what it owes to others. What runs of an earlier version, such
// as without GPUs, pays for none.
func CanGrow(tx *state.Tx, key nomad.JobKey, g *record.Group, count int) bool {
	q := tx.Cluster.QueueOf(key, g.Ask.Group)
	if q == nil || tx.Cluster.Live(key, g.Ask.Group) == 0 {
		return true
	}
	missing := max(0, count-tx.Cluster.LiveAsAsked(key, g.Ask.Group))
	_, why := tx.Queue.OverWithOwed(q.Name, g.Cost.Times(int64(missing)), key)
	return why == ""
}
