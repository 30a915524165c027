// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// keptFor is the waiting group that a placement would take its room from; nil for
// none.
func (w *Window) keptFor(a groupAsk, u *blocks.Placed) *waiter {
	tx := a.tx
	for i := range w.waiters {
		first := &w.waiters[i]
		if first.key == a.key || first.node != u.Node || !first.goesBefore(tx, a.ask, a.key) {
			continue
		}
		if tx.With(u.Usage, func() bool { return !tx.ServesNow(first.node, first.need, first.leaves(tx)) }) && !endsBefore(a, u, first) {
			return first
		}
	}
	return nil
}

// leaves selects the work that ends before a group has to give up the node that is kept for it.
func (w *waiter) leaves(tx *state.Tx) func(*place.Usage) bool {
	goes := tx.Leaves(w.turn.Priority, w.key)
	return func(u *place.Usage) bool { return isFree(u) || goes(u) }
}

// Free room on kept nodes is booked as work with such an ID, where room is looked for that
// leaves it to the others.
const freeRoom = "free:"

func isFree(u *place.Usage) bool { return strings.HasPrefix(u.ID, freeRoom) }

// bookFree books the free room on the nodes that are kept for groups which go before another one. The
// result frees it again.
func (w *Window) bookFree(a groupAsk) (restore func()) {
	var list []place.Usage
	for i := range w.waiters {
		first := &w.waiters[i]
		if first.key == a.key || first.node == "" || !first.goesBefore(a.tx, a.ask, a.key) {
			continue
		}
		u := a.tx.Snapshot().Rest(first.node)
		if u.ID = freeRoom + first.node; len(u.Takes) > 0 {
			list = append(list, u)
		}
	}
	return a.tx.Booked(list)
}

// leaves reports whether room that is made for a group leaves the others the room kept for them: none of
// them goes before it there; or it takes back its queue's own, beside the room booked as free,
// and has to give way to them in its turn.
func (w *Window) leaves(a groupAsk, room *Room) bool {
	first, planner, own := w.keptFor(a, &room.at), a.tx.Planner(), &a.parts[0].Req
	if first == nil || !planner.Owns(own) {
		return first == nil
	}
	one := oneOf(a.tx, first.key, first.ask)
	return one != nil && planner.Yields(own, one)
}

// holdAfter is the hold of a victim's group for which Nomad would start it again at once in room that is
// kept for what goes before it; nil where there is no such room, or something else of the group runs.
func (w *Window) holdAfter(tx *state.Tx, e *Eviction, v *Victim) *admit.Hold {
	r := tx.Record(v.Job)
	if r == nil || tx.Unchangeable(v.Job) {
		return nil
	}
	g, known := r.Groups[v.Group]
	stays := slices.ContainsFunc(tx.AllocsOf(v.Job), func(a *nomad.Alloc) bool {
		return a.Group == v.Group && !a.Stopping && !slices.ContainsFunc(e.Victims, func(o Victim) bool { return o.AllocID == a.ID })
	})
	if !known || stays || !places(&g.Ask) {
		return nil
	}
	need := blocks.NeedOf(tx, &g)
	for i := range w.waiters {
		first := &w.waiters[i]
		if first.key != v.Job && (first.node != v.Node || e.Room == nil) && tx.ServesNow(first.node, need, nil) && first.goesBefore(tx, &g.Ask, v.Job) {
			return first.holdOf(v.Job)
		}
	}
	if e.Moves || !mayHold(tx, v.Job, &g.Ask) {
		return nil
	}
	return &admit.Hold{Kind: view.WaitsForRoom, Sentence: "it made room for a job that goes first"}
}
