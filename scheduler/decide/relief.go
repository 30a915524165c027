// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// AskedBy is what the work of a usage asked for, as the core takes it, on the kind of GPU
// that it has; ok is false where that is not known, or is more than one request.
func AskedBy(tx *state.Tx, u *place.Usage) (r place.Request, ok bool) {
	key, g, ok := recordOf(tx, u)
	if !ok || len(u.Takes) == 0 {
		return r, false
	}
	group, err := newGroupAsk(tx, key, &g.Ask)
	if err != nil || len(group.parts) != 1 || len(group.parts[0].Or) > 0 {
		return r, false
	}
	if blocks.IsSeat(&tx.Cluster.Node(u.NodeID).Plan.GPUs[u.Takes[0].GPU]) {
		return r, false // a move ends it, where the others would step aside
	}
	r = without(group, hostsOf(tx, key, &g.Ask)).parts[0].Req
	r.ID, r.Models, r.MinRun = u.ID, []string{tx.Cluster.Node(u.NodeID).Plan.GPUs[u.Takes[0].GPU].Model}, u.MinRun
	return r, true
}

func recordOf(tx *state.Tx, u *place.Usage) (nomad.JobKey, *record.Group, bool) {
	a := tx.Cluster.Alloc(u.ID)
	if a == nil {
		return nomad.JobKey{}, nil, false
	}
	r := tx.Queue.Record(a.Key())
	if r == nil {
		return a.Key(), nil, false
	}
	g, known := r.Groups[a.Group]
	return a.Key(), &g, known
}

// MayGo reports whether the work of a move may run where it is to go, with its device
// blocks as they are.
func MayGo(tx *state.Tx, m *place.Move) bool {
	_, g, ok := recordOf(tx, &m.From)
	return ok && tx.Capacity.ServesNow(m.To.NodeID, blocks.NeedOf(tx, g), nil)
}

// Relieve looks for moves of running work that let a waiting group start, or one alloc of
// it. The error says why there are none, in words that name no other job.
func Relieve(tx *state.Tx, key nomad.JobKey, g *record.Group, o place.Rebalancing) (*Eviction, error) {
	rs, of := requestsOf(tx, key, g)
	if g.Ask.Gang {
		if rs, of = togetherRequests(tx, key, g); setsApart(of) != nil {
			rs = nil // moves are planned for any nodes
		}
	}
	if len(rs) == 0 {
		return nil, fmt.Errorf("no work is moved for groups like it")
	}
	wait := o.Horizon
	if s := tx.Queue.Told(key, g.Ask.Group).Start; s != nil && s.Known {
		wait = max(0, s.At.Add(s.Likely).Sub(tx.Now()))
	}
	defer withoutStopping(tx)()
	relief, err := tx.Planner().RoomByMoving(rs, wait, o, tx.Now())
	switch {
	case err != nil:
		return nil, err
	case len(relief.Moves) == 0:
		return nil, nil
	case slices.ContainsFunc(relief.Moves, func(m place.Move) bool { return !MayGo(tx, &m) }):
		return nil, fmt.Errorf("what would have to be moved cannot start elsewhere as it is registered")
	}
	e := &Eviction{Job: key, Group: g.Ask.Group, Moves: true}
	for i := range relief.Placements {
		u := relief.Placements[i].Usage
		u.Priority = of[i].parts[0].Req.Priority
		e.Promises = append(e.Promises, Promise{key, of[i].ask.Group, u})
	}
	if !g.Ask.Gang {
		if e.Room = roomBy(of[0], g, &relief); e.Room == nil {
			return nil, fmt.Errorf("moves would make room for it, but not as it is registered")
		}
	}
	e.describeMoves(of[0], relief.Moves)
	return e, nil
}

// requestsOf is one alloc of a group that waits.
func requestsOf(tx *state.Tx, key nomad.JobKey, g *record.Group) ([]place.Request, []groupAsk) {
	a, _, err := oneMore(tx, key, g)
	if err != nil || len(a.parts) != 1 {
		return nil, nil
	}
	a = without(a, hostsOf(tx, key, &g.Ask))
	return []place.Request{a.parts[0].Req}, []groupAsk{a}
}

// roomBy is the room that moves make for one alloc; nil where it does not do for the
// device blocks that are registered and must stay.
func roomBy(a groupAsk, g *record.Group, relief *place.Relief) *Room {
	pl := relief.Placements[0]
	usage := pl.Usage
	usage.Priority = a.parts[0].Req.Priority
	room := &Room{parts: a.parts, rewrite: waitsAsAWhole(a.tx, a.key, a.ask, g) && !a.tx.Cluster.Unchangeable(a.key)}
	room.at = blocks.Placed{Node: pl.NodeID, Usage: usage, Each: []place.Usage{usage}, Score: pl.Score}
	for i := range relief.Moves {
		room.victims = append(room.victims, relief.Moves[i].From)
	}
	if !room.rewrite && !servesAfter(a.tx, room, g) {
		return nil
	}
	return room
}

// describeMoves fills in the moves, with their targets and reasons.
func (e *Eviction) describeMoves(waiting groupAsk, moves []place.Move) {
	tx := waiting.tx
	for i := range moves {
		m := &moves[i]
		a := tx.Cluster.Alloc(m.From.ID)
		e.Victims = append(e.Victims, Victim{
			AllocID: a.ID, Job: a.Key(), Group: a.Group, Node: a.NodeID, To: m.To.NodeID, Priority: m.From.Priority, Queue: m.From.Queue,
			Text: MoveText(tx, m, fmt.Sprintf("so that job %s finds room for %s", waiting.key, waiting.ask)),
		})
	}
	for i := range moves {
		u := moves[i].To.Usage
		u.Queue, u.Priority = moves[i].From.Queue, moves[i].From.Priority
		e.Promises = append(e.Promises, Promise{e.Victims[i].Job, e.Victims[i].Group, u})
	}
	e.Text = fmt.Sprintf("%d allocs move so that job %s finds room for %s", len(moves), waiting.key, waiting.ask)
}

// MoveText says what moves, why, and what that costs.
func MoveText(tx *state.Tx, m *place.Move, why string) string {
	a, cost := tx.Cluster.Alloc(m.From.ID), "no work is lost"
	if lost := place.GPUTime(m.LostMilliSeconds); lost > 0 {
		since := "it started"
		if m.From.WorkSaved > 0 {
			since = "its work was saved"
		}
		cost = fmt.Sprintf("%s of GPU time since %s is lost", lost.Round(time.Second), since)
	}
	return fmt.Sprintf("alloc %.8s of job %s moves from node %s to %s, %s; %s",
		a.ID, a.Key(), tx.Cluster.Node(m.From.NodeID).Plan.Name, tx.Cluster.Node(m.To.NodeID).Plan.Name, why, cost)
}
