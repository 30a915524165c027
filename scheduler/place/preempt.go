// SPDX-License-Identifier: MPL-2.0

package place

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Plan makes room for a group of requests: end the victims, then place.
type Plan struct {
	Placements []Placement // in the order of the requests
	Victims    []Usage     // by ID; none when there was room
}

// Preempt plans evictions that let a group of requests start together: victims
// of the lowest priority, as few as possible, of the queues that are last in the order
// ([quota.Order]), with the least work lost, never
// of equal or higher priority unless they are on quota that the request's
// queue wants back. Work on what the group does not need is given back. The
// snapshot is left as it was. The error wraps ErrNoRoom when no evictions that
// are allowed would help, and ErrQuota when a limit forbids it.
func (p *Planner) Preempt(rs []Request, now time.Time) (Plan, error) {
	return p.PreemptApart(rs, nil, now)
}

// PreemptApart is Preempt where requests take a node each: those of the same name in apart, which
// is as long as rs, do not share one; those without a name may. None may be nil for all of them.
func (p *Planner) PreemptApart(rs []Request, apart []string, now time.Time) (Plan, error) {
	t := p.begin()
	defer t.rollback()
	plan := Plan{Placements: make([]Placement, len(rs))}
	spared := map[string]bool{} // the group itself, and who is a victim already
	for i := range rs {
		spared[rs[i].ID] = true
	}
	taken := map[string][]string{} // nodes, by name of those that are apart
	for _, i := range bySize(rs) {
		r := &rs[i]
		if apart != nil && apart[i] != "" && len(taken[apart[i]]) > 0 {
			other := rs[i]
			if other.Nodes = p.otherNodes(r.Nodes, taken[apart[i]]); len(other.Nodes) == 0 {
				return Plan{}, fmt.Errorf("preempt for %q: no node is left for it alone: %w", r.ID, ErrNoRoom)
			}
			r = &other
		}
		pl, victims, err := p.makeRoom(t, r, now, spared)
		if err != nil {
			return Plan{}, err
		}
		if apart != nil && apart[i] != "" {
			taken[apart[i]] = append(taken[apart[i]], pl.NodeID)
		}
		for _, u := range victims {
			spared[u.ID] = true
		}
		plan.Placements[i] = pl
		plan.Victims = append(plan.Victims, victims...)
	}
	plan.Victims = p.giveBack(t, plan.Victims, now)
	return plan, nil
}

// otherNodes are some nodes, all where none are named, without others.
func (p *Planner) otherNodes(nodes, without []string) []string {
	if len(nodes) == 0 {
		nodes = slices.Sorted(maps.Keys(p.snap.Nodes))
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(id string) bool { return slices.Contains(without, id) })
}

// makeRoom places one request, with evictions where it must, and books it all
// in the transaction.
func (p *Planner) makeRoom(t *transaction, r *Request, now time.Time, spared map[string]bool) (Placement, []Usage, error) {
	pl, err := p.Place(r)
	if err == nil {
		return pl, nil, t.apply(pl.Usage)
	}
	if verr := r.Validate(); verr != nil {
		return Placement{}, nil, verr
	}
	sh := p.shapeOf(r)
	e := p.eviction(r, sh, now, spared)
	sp := e.Best()
	if sp == nil {
		return Placement{}, nil, fmt.Errorf("preempt for %q: %w", r.ID, err)
	}
	var victims []Usage
	for _, u := range sp.Victims {
		victims = append(victims, *u)
	}
	for i := range victims {
		if err := t.release(victims[i].ID); err != nil {
			return Placement{}, nil, err
		}
	}
	pl = p.placement(r, sh, sp.Pool)
	if err := p.withinLimits(&pl.Usage); err != nil {
		return Placement{}, nil, fmt.Errorf("preempt for %q: %w", r.ID, err)
	}
	return pl, victims, t.apply(pl.Usage)
}

// giveBack returns the victims that must go: all those that no longer fit next
// to the group, tried in order of what their loss would cost.
func (p *Planner) giveBack(t *transaction, victims []Usage, now time.Time) []Usage {
	order := p.Order()
	slices.SortFunc(victims, func(a, b Usage) int {
		return cmp.Or(
			cmp.Compare(b.Priority, a.Priority), order.CompareQueues(a.Queue, b.Queue), cmp.Compare(b.LostMilliSeconds(now), a.LostMilliSeconds(now)),
			cmp.Compare(a.ID, b.ID),
		)
	})
	var gone []Usage
	for _, u := range victims {
		if p.withinLimits(&u) != nil || t.apply(u) != nil {
			gone = append(gone, u)
		}
	}
	slices.SortFunc(gone, func(a, b Usage) int { return cmp.Compare(a.ID, b.ID) })
	return gone
}
