// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"maps"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/turns"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Window is the groups whose turn is next, each with the nodes that are kept for it.
// What comes after them takes no room there.
type Window struct{ waiters []waiter }

// waiter is a group that waits for room, with the node that is kept for it: empty
// where it cannot get any. A gang has one for each node that it needs.
type waiter struct {
	key   nomad.JobKey
	group string
	turn  quota.Turn
	need  *state.Need // there; of all allocs of a gang that are to go there
	node  string
	ask   *admit.Ask
	start *time.Duration // see soonest; nil: not looked up yet
}

// turnOf is a group's place in the order of what waits.
func turnOf(tx *state.Tx, a *admit.Ask) quota.Turn {
	return tx.Turn(nomad.JobKey{Namespace: a.Namespace, ID: a.JobID}, a.Group, a.Priority, a.Queue, a.TimeLimit)
}

// goesFirst reports whether a group that waits goes before another one; see [turns.GoesFirst].
func goesFirst(tx *state.Tx, waits, other quota.Turn) bool {
	return turns.GoesFirst(tx.Order(), tx.Now(), waits, other)
}

// goesBefore reports whether a group that waits goes before another one that asks for room: by the
// order, but not where it would have to give the room back to the other one, as borrowed room goes
// back to guaranteed work.
func (w *waiter) goesBefore(tx *state.Tx, a *admit.Ask, key nomad.JobKey) bool {
	own := turnOf(tx, a)
	switch {
	case !goesFirst(tx, w.turn, own):
		return false
	case w.turn.Queue == own.Queue: // of one queue nothing is taken back
		return true
	}
	one, other := oneOf(tx, w.key, w.ask), oneOf(tx, key, a)
	return one == nil || other == nil || !tx.Planner().Yields(one, other)
}

// oneOf is what one alloc of a group asks for; nil where it asks for no GPU.
func oneOf(tx *state.Tx, key nomad.JobKey, a *admit.Ask) *place.Request {
	group, err := newGroupAsk(tx, key, a)
	if err != nil || len(group.parts) == 0 {
		return nil
	}
	return &group.parts[0].Req
}

// booked reports whether all that a group misses has its room already.
func booked(tx *state.Tx, w *state.Waiting) bool { return tx.Assumed(w.Job, w.Group) >= w.Missing }

// NewWindow takes the first of the groups that wait for room or for their turn, and
// keeps one node for each that could get it, and for a gang as many as it needs: where
// the least has to go. A gang for which there are too few gets none.
func NewWindow(tx *state.Tx) *Window {
	var list []waiter
	kept := map[string]bool{}
	for one := range tx.WaitingFor("", view.WaitsForPriority, view.WaitsForRoom) {
		r := tx.Record(one.Job)
		if r == nil || tx.Drifted(one.Job) || tx.Unrecorded(one.Job) {
			continue
		}
		g, known := r.Groups[one.Group]
		if !known || booked(tx, one) {
			continue
		}
		w := waiter{key: one.Job, group: one.Group, turn: one.Turn, need: blocks.NeedOf(tx, &g), ask: &g.Ask}
		if one.Held == view.WaitsForRoom && (g.Ask.Gang || Rests(&g, tx.Now())) {
			list = append(list, gangNodes(tx, &g, w, kept, turns.MostKept-len(list))...)
		} else {
			w.node = tx.RoomFor(w.need).Least(w.turn.Priority, w.key, kept)
			list = append(list, w)
			kept[w.node] = true
		}
		if len(list) == turns.MostKept {
			break
		}
	}
	return &Window{list}
}

// gangNodes are the nodes to keep for what a gang that waits for room needs of a group, with
// as many of its allocs on each as could go there; none where those are more than most, or
// where it rests or its room is on its way.
func gangNodes(tx *state.Tx, g *record.Group, w waiter, kept map[string]bool, most int) (list []waiter) {
	left := g.Ask.Together() - tx.Live(w.key, w.group)
	if !g.Ask.Gang || Rests(g, tx.Now()) || tx.Assumed(w.key, w.group) > 0 {
		return nil
	}
	one, room, taken, leaves := w.need, tx.RoomFor(w.need), maps.Clone(kept), tx.Leaves(w.turn.Priority, w.key)
	for left > 0 {
		if w.node = room.Least(w.turn.Priority, w.key, taken); w.node == "" || len(list) == most {
			return nil
		}
		taken[w.node] = true
		n := 1
		for w.need = one; n < left && !apart(&g.Ask, left); n++ {
			more := one.Times(n + 1)
			if !tx.ServesNow(w.node, more, leaves) {
				break
			}
			w.need = more
		}
		left -= n
		list = append(list, w)
	}
	maps.Copy(kept, taken)
	return list
}

// holdOf is the hold of a group that a waiter goes before; nil where there is none.
func (w *waiter) holdOf(key nomad.JobKey) *admit.Hold {
	if w == nil {
		return nil
	}
	return &admit.Hold{Kind: view.WaitsForPriority, Sentence: fmt.Sprintf("%s with priority %d waits for room that this would take", otherJob(key, w.key), w.turn.Priority)}
}
