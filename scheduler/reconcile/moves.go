// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"errors"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Move is running work that would pay to be elsewhere.
type Move struct {
	decide.Promise // of its new place
	AllocID        string
	From, To       string // node IDs
	// Text names the gain.
	Text string
}

// Moves proposes moves of at most that many allocs, none while anything
// waits for room: then room is better given to what waits.
func (*Finder) Moves(tx *state.Tx, most int) []Move {
	if tx.Cluster.Ready() != nil || len(tx.Capacity.AllAssumed()) > 0 || anyWaitsForRoom(tx) {
		return nil
	}
	var moves []Move
	moving := map[string]bool{} // groups: one alloc of each at a time
	for _, m := range tx.Planner().Rebalance(rebalancing(tx, most), tx.Now()) {
		a := tx.Cluster.Alloc(m.From.ID)
		if moving[a.Key().String()+"/"+a.Group] || !decide.MayGo(tx, &m) {
			continue
		}
		moving[a.Key().String()+"/"+a.Group] = true
		u := m.To.Usage
		u.Queue, u.Priority = m.From.Queue, m.From.Priority
		moves = append(moves, Move{
			Promise: decide.Promise{Job: a.Key(), Group: a.Group, Usage: u}, AllocID: a.ID, From: m.From.NodeID, To: m.To.NodeID,
			Text: decide.MoveText(tx, &m, won(tx, &m)),
		})
	}
	return moves
}

// won says what a move is for.
func won(tx *state.Tx, m *place.Move) string {
	switch m.Why {
	case place.MovesForHeat:
		return fmt.Sprintf("because several tasks have used its GPU fully for %s or longer", tx.Config().Rebalance.Interval)
	case place.MovesToEmpty:
		return "because that node is being drained"
	}
	return fmt.Sprintf("which keeps %s GPU from going to waste", quota.GPUs(m.GainMilli))
}

// mostRelieved is for how many of those that wait moves are looked for, the first.
const mostRelieved = 8

// Relief proposes moves of at most that many allocs that let the first start, among the groups that
// wait for room, for which there are any that pay. Nil: there are none, or room is being
// made already.
func (*Finder) Relief(tx *state.Tx, most int) *Item {
	if tx.Cluster.Ready() != nil || len(tx.Capacity.AllAssumed()) > 0 {
		return nil
	}
	var first []*state.Waiting
	for w := range tx.Queue.Waiting("", view.WaitsForRoom) {
		if first = append(first, w); len(first) == mostRelieved {
			break
		}
	}
	for _, w := range first {
		r := tx.Queue.Record(w.Job)
		if r == nil || tx.Queue.Drifted(w.Job) || tx.Queue.Unrecorded(w.Job) || tx.Cluster.Unchangeable(w.Job) || !tx.Queue.Repeats(w.Job).May() || tx.Now().Sub(w.Turn.Since) < settled {
			continue
		}
		if g, known := r.Groups[w.Group]; known && decide.MayEvictFor(&g, tx.Now()) {
			if item := relieve(tx, w, &g, most); item != nil {
				return item
			}
		}
	}
	return nil
}

// relieve proposes moves that let a group start, or says of it why there are none.
func relieve(tx *state.Tx, w *state.Waiting, g *record.Group, most int) *Item {
	var e *decide.Eviction
	var err error
	tx.Try(func() { e, err = decide.Relieve(tx, w.Job, g, rebalancing(tx, most)) })
	why := ""
	switch {
	case errors.Is(err, place.ErrNoRoom), errors.Is(err, place.ErrQuota):
		why = "no moves of running work would make room"
	case err != nil:
		why = err.Error()
	}
	tx.NoteUnmoved(w.Job, w.Group, why)
	if e == nil {
		return nil
	}
	item := &Item{Job: w.Job, Evict: e, Revision: madeFor(w.Group, e)}
	return item
}

// horizon is for how long what a move wins is taken to last.
const horizon = time.Hour

// anyWaitsForRoom reports whether something waits that more room would help.
func anyWaitsForRoom(tx *state.Tx) bool {
	for range tx.Queue.Waiting("", view.WaitsForRoom, view.WaitsForPriority) {
		return true
	}
	return false
}

// rebalancing is what the core may propose.
func rebalancing(tx *state.Tx, most int) place.Rebalancing {
	o := place.Rebalancing{
		Moves: most, Horizon: horizon, Emptying: map[string]bool{},
		CanMove: func(u *place.Usage) bool { return movable(tx, u) },
		Request: func(u *place.Usage) (place.Request, bool) { return decide.AskedBy(tx, u) },
	}
	for _, id := range tx.Cluster.NodeIDs() {
		if tx.Cluster.Node(id).View.Draining {
			o.Emptying[id] = true
		}
	}
	if tx.Config().Placement.Weights.HeatMilli > 0 {
		o.Hot = tx.Cluster.HotGPUs(tx.Config().Rebalance.Interval)
	}
	return o
}

// movable reports whether an alloc may be moved: one that came through the
// service, has run long enough, was not moved within the last hour, stands alone, and has
// no sibling on its node, which would
// have to go too, nor one that has completed, which Nomad would run again. As with a drain, its group's migrate block allows it and all of
// the group run and are healthy: none is away for another move, an update or a
// drain. A batch job has no such block, and its health is not watched.
func movable(tx *state.Tx, u *place.Usage) bool {
	a := tx.Cluster.Alloc(u.ID)
	if a == nil || u.Gang != "" || tx.Queue.Repeats(a.Key()).Allocs > 0 || tx.Capacity.Moved(a.Key()) || !tx.Capacity.Evictable(a) || !tx.Capacity.BudgetLeft(a, true) {
		return false
	}
	if r := tx.Queue.Record(a.Key()); r == nil || len(r.Groups[a.Group].Excluded) > 0 {
		return false
	}
	j, running := tx.Cluster.Job(a.Key()), 0
	for _, sibling := range tx.Cluster.AllocsOf(a.Key()) {
		switch {
		case sibling.Group != a.Group:
			continue
		case sibling.Stopping || sibling.Status != "running", j.Type == "service" && !sibling.Healthy:
			return false
		case sibling.ID != a.ID && sibling.NodeID == a.NodeID:
			return false
		}
		running++
	}
	g := j.Group(a.Group)
	return g != nil && !g.Stays && running == g.Count
}
