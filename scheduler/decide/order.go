// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"maps"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/turns"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Window is the groups whose turn is next, each with the nodes that are kept for it.
type Window = turns.Window

// turnOf is a group's place in the order of what waits.
func turnOf(tx *state.Tx, a *admit.Ask) quota.Turn {
	return tx.Queue.Turn(nomad.JobKey{Namespace: a.Namespace, ID: a.JobID}, a.Group, a.Priority, a.Queue, a.TimeLimit)
}

// goesFirst reports whether a group that waits goes before another one; see [turns.GoesFirst].
func goesFirst(tx *state.Tx, waits, other quota.Turn) bool {
	return turns.GoesFirst(tx.Planner().Order(), tx.Now(), waits, other)
}

// work is a group that asks for room, as the window takes it.
func (a groupAsk) work() *turns.Work {
	return &turns.Work{
		Namespace: a.key.Namespace, Job: a.key.ID, Turn: turnOf(a.tx, a.ask), Gang: a.ask.Gang,
		Request: func() *place.Request { return oneOf(a) },
		Runs: func(u *place.Usage) forecast.Remaining {
			if a.ask.JobType != "batch" {
				return forecast.Remaining{}
			}
			return a.tx.Cluster.RunTime(a.key, a.ask.Group, a.ask.TimeLimit, u.Takes)
		},
	}
}

// oneOf is what one alloc of a group asks for; nil where it asks for no GPU.
func oneOf(a groupAsk) *place.Request {
	if len(a.parts) == 0 {
		return nil
	}
	return &a.parts[0].Req
}

// waiter is a group that waits for room on a node.
type waiter struct {
	tx   *state.Tx
	key  nomad.JobKey
	node string
	need *state.Need // there; of all allocs of a gang that are to go there
	goes func(*place.Usage) bool
}

// Serves implements [turns.Room].
func (w *waiter) Serves(without func(*place.Usage) bool) bool {
	return w.tx.Capacity.ServesNow(w.node, w.need, without)
}

// Leaves implements [turns.Room].
func (w *waiter) Leaves(u *place.Usage) bool { return w.goes(u) }

// Left implements [turns.Room]. Nothing is known of a promise.
func (w *waiter) Left(u *place.Usage) forecast.Remaining {
	if a := w.tx.Cluster.Alloc(u.ID); a == nil || a.Stopping {
		return forecast.Remaining{}
	}
	return w.tx.Cluster.Remaining(u)
}

// booked reports whether all that a group misses has its room already.
func booked(tx *state.Tx, w *state.Waiting) bool {
	return tx.Capacity.Assumed(w.Job, w.Group) >= w.Missing
}

// NewWindow takes the first of the groups that wait for room or for their turn, and
// keeps one node for each that could get it, and for a gang as many as it needs: where
// the least has to go. A gang for which there are too few gets none.
func NewWindow(tx *state.Tx) *Window {
	window := turns.NewWindow(tx.Planner(), tx.Planner().Snapshot(), tx.Now, turns.MostKept)
	for one := range tx.Queue.Waiting("", view.WaitsForPriority, view.WaitsForRoom) {
		r := tx.Queue.Record(one.Job)
		if r == nil || tx.Queue.Drifted(one.Job) || tx.Queue.Unrecorded(one.Job) {
			continue
		}
		g, known := r.Groups[one.Group]
		if !known || booked(tx, one) {
			continue
		}
		w := waiter{tx: tx, key: one.Job, need: blocks.NeedOf(tx, &g), goes: state.Leaves(tx.Config(), one.Turn.Priority, one.Job)}
		list := []waiter{w}
		if one.Held == view.WaitsForRoom && (g.Ask.Gang || Rests(&g, tx.Now())) {
			list = gangNodes(tx, &g, one, w, window)
		} else {
			list[0].node = tx.Capacity.RoomFor(w.need).Least(one.Turn.Priority, one.Job, window.Taken)
		}
		work := turns.Work{Namespace: one.Job.Namespace, Job: one.Job.ID, Turn: one.Turn, Request: func() *place.Request {
			a, err := newGroupAsk(tx, one.Job, &g.Ask)
			if err != nil {
				return nil
			}
			return oneOf(a)
		}}
		for i := range list {
			window.Keep(turns.Kept{Work: work, Node: list[i].node, Room: &list[i]})
		}
		if window.Left() == 0 {
			break
		}
	}
	return window
}

// gangNodes are the nodes to keep for what a gang that waits for room needs of a group, with
// as many of its allocs on each as could go there; none where those are more than the window may keep, or
// where it rests or its room is on its way.
func gangNodes(tx *state.Tx, g *record.Group, one *state.Waiting, w waiter, window *Window) (list []waiter) {
	left := g.Ask.Together() - tx.Cluster.Live(w.key, one.Group)
	if !g.Ask.Gang || Rests(g, tx.Now()) || tx.Capacity.Assumed(w.key, one.Group) > 0 {
		return nil
	}
	need, room, taken := w.need, tx.Capacity.RoomFor(w.need), maps.Clone(window.Taken)
	for left > 0 {
		if w.node = room.Least(one.Turn.Priority, w.key, taken); w.node == "" || len(list) == window.Left() {
			return nil
		}
		taken[w.node] = true
		n := 1
		for w.need = need; n < left && !apart(&g.Ask, left); n++ {
			more := need.Times(n + 1)
			if !tx.Capacity.ServesNow(w.node, more, w.goes) {
				break
			}
			w.need = more
		}
		left -= n
		list = append(list, w)
	}
	return list
}

// holdOf is the hold of a group that a waiting one goes before; nil where none does.
func holdOf(k *turns.Kept, key nomad.JobKey) *admit.Hold {
	if k == nil {
		return nil
	}
	first := nomad.JobKey{Namespace: k.Namespace, ID: k.Job}
	return &admit.Hold{Kind: view.WaitsForPriority, Sentence: fmt.Sprintf("%s with priority %d waits for room that this would take", otherJob(key, first), k.Turn.Priority)}
}
