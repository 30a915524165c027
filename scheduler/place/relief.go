// SPDX-License-Identifier: MPL-2.0

package place

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/evict"
)

// Relief is room that moves make for work that waits.
type Relief struct {
	Placements []Placement // of what waits, in the order of the requests
	Moves      []Move      // that it takes, all of them
}

// ErrUnpaid is wrapped by RoomByMoving's error when moves would make room, and lose more
// work than what waits would gain.
var ErrUnpaid = errors.New("moves that would make room do not pay")

// RoomByMoving plans moves that let a group of requests start together, which would wait so
// long otherwise (at most the horizon counts). They pay when the GPU time that the group
// gains is more than the work that they lose. Moved work is of any priority, and goes where
// there is room for it now. Where nothing need be moved, nothing is. The snapshot is left
// as it was.
func (p *Planner) RoomByMoving(rs []Request, wait time.Duration, o Rebalancing, now time.Time) (Relief, error) {
	p.prepare()
	o = o.defaults(p)
	f := &relocation{p: p, o: &o, now: now, spared: map[string]bool{}, left: map[*cluster.NodeState]bool{}}
	var gain, lost int64
	for i := range rs {
		f.spared[rs[i].ID] = true
		gain += p.shapeOf(&rs[i]).LeastCharge(p.snap).Milli
	}
	t := p.begin()
	defer t.rollback()
	out := Relief{Placements: make([]Placement, len(rs))}
	for _, i := range bySize(rs) {
		pl, err := f.makeRoom(t, &rs[i])
		if err != nil {
			return Relief{}, err
		}
		out.Placements[i] = pl
	}
	moves, ok := f.relocate(t, f.moved)
	if !ok {
		return Relief{}, fmt.Errorf("move for %q: what would be moved fits nowhere else: %w", rs[0].ID, ErrNoRoom)
	}
	for i := range moves {
		moves[i].GainMilli = gain
		lost += moves[i].LostMilliSeconds
	}
	if wait = min(wait, o.Horizon); len(moves) > 0 && lost >= gain*int64(wait/time.Second) {
		return Relief{}, fmt.Errorf("%w: they lose %s of GPU time, and win %s", ErrUnpaid, GPUTime(lost), GPUTime(gain*int64(wait/time.Second)))
	}
	out.Moves = moves
	return out, nil
}

// GPUTime is milli-seconds of GPU as a time of one GPU.
func GPUTime(milliSeconds int64) time.Duration {
	return (time.Duration(milliSeconds) * (time.Second / cluster.GPUMilli)).Round(time.Second)
}

// relocation is the search for room by moves.
type relocation struct {
	p      *Planner
	o      *Rebalancing
	now    time.Time
	spared map[string]bool             // the group itself, and work that is moved already
	moved  []Usage                     // so far
	left   map[*cluster.NodeState]bool // by moved work, and none of it goes there
}

// makeRoom places one request, with work taken away where it must, and books it in the
// transaction.
func (f *relocation) makeRoom(t *transaction, r *Request) (Placement, error) {
	pl, err := f.p.Place(r)
	if err == nil {
		return pl, t.apply(pl.Usage)
	}
	if !errors.Is(err, ErrNoRoom) {
		return Placement{}, err
	}
	sh := f.p.shapeOf(r)
	e := f.p.eviction(r, sh, f.now, f.spared)
	e.Movable = func(u *Usage) bool {
		return f.o.movable(u, f.now) && f.movesTo(u, f.p.snap.Nodes[u.NodeID]) != nil
	}
	var best *evict.Set
	for _, b := range e.Nearest() {
		for _, set := range e.Sets(b) {
			if len(set.Victims) <= f.o.Moves-len(f.moved) && (best == nil || e.CompareVictims(set, best) < 0) && f.fits(r, sh, set) {
				best = set
			}
		}
	}
	if best == nil {
		return Placement{}, fmt.Errorf("move for %q: %w", r.ID, err)
	}
	pl, victims, err := f.vacate(t, r, sh, best)
	f.left[best.Pool.Node] = true
	f.moved = append(f.moved, victims...)
	for i := range victims {
		f.spared[victims[i].ID] = true
	}
	return pl, err
}

// movesTo is where a usage would go if it left a node; nil: nowhere.
func (f *relocation) movesTo(u *Usage, from *cluster.NodeState) *cluster.Pool {
	r, ok := f.o.Request(u)
	if !ok {
		return nil
	}
	return f.p.elsewhere(f.p.shapeOf(&r), func(n *cluster.NodeState) bool {
		return n != from && !f.left[n] && f.o.takes(n)
	})
}

// fits reports whether all that would have to be moved finds another place.
func (f *relocation) fits(r *Request, sh *shape, set *evict.Set) bool {
	t := f.p.begin()
	defer t.rollback()
	_, victims, err := f.vacate(t, r, sh, set)
	if err != nil {
		return false
	}
	_, ok := f.relocate(t, victims)
	return ok
}

// vacate takes a set of work away and places the request where it was.
func (f *relocation) vacate(t *transaction, r *Request, sh *shape, set *evict.Set) (Placement, []Usage, error) {
	victims := make([]Usage, len(set.Victims))
	for i, u := range set.Victims {
		victims[i] = *u
	}
	for i := range victims {
		if err := t.release(victims[i].ID); err != nil {
			return Placement{}, nil, err
		}
	}
	pl := f.p.placement(r, sh, set.Pool)
	if err := f.p.withinLimits(&pl.Usage); err != nil {
		return Placement{}, nil, err
	}
	return pl, victims, t.apply(pl.Usage)
}

// relocate finds other places for work that was taken away, for the largest first.
func (f *relocation) relocate(t *transaction, work []Usage) ([]Move, bool) {
	work = slices.Clone(work)
	slices.SortStableFunc(work, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(b.Milli(), a.Milli()), cmp.Compare(b.CPUMHz, a.CPUMHz), cmp.Compare(a.ID, b.ID))
	})
	var moves []Move
	for i := range work {
		u := &work[i]
		to := f.movesTo(u, f.p.snap.Nodes[u.NodeID])
		if to == nil {
			return nil, false
		}
		r, _ := f.o.Request(u)
		m := Move{Why: MovesForRoom, From: *u, To: f.p.placement(&r, f.p.shapeOf(&r), to), LostMilliSeconds: u.LostMilliSeconds(f.now)}
		if f.p.withinLimits(&m.To.Usage) != nil || t.apply(m.To.Usage) != nil {
			return nil, false
		}
		moves = append(moves, m)
	}
	return moves, true
}
