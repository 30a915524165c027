// SPDX-License-Identifier: MPL-2.0

package place

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/score"
)

// PlaceGang places all requests or none. The larger are placed first, each on the
// best node; where that leaves no room for all of them, other nodes are tried. The
// answers are in the order of the requests. Nothing is booked.
func (p *Planner) PlaceGang(rs []Request) ([]Placement, error) {
	t := p.begin()
	defer t.rollback()
	out := make([]Placement, len(rs))
	for _, i := range bySize(rs) {
		pl, err := p.Place(&rs[i])
		if err == nil {
			err = t.apply(pl.Usage)
		}
		if err != nil {
			t.rollback()
			return p.searchGang(rs, err)
		}
		out[i] = pl
	}
	return out, nil
}

// mostGangTries bounds how many placements are tried for a gang that does not fit
// where each of its tasks would go by itself: this number on a node of each class, and
// as many more on all nodes and GPUs.
const mostGangTries = 2000

// searchGang tries the nodes of every class for every request, those first that
// have the fewest, the best nodes first, and goes back where it gets no further. Where
// that finds nothing, it also tries what would make no difference to a request alone.
func (p *Planner) searchGang(rs []Request, why error) ([]Placement, error) {
	fits := make([]int, len(rs))
	for i := range rs {
		if fits[i] = len(p.choices(&rs[i], false)); fits[i] == 0 {
			return nil, fmt.Errorf("place group of %d: %w", len(rs), why)
		}
	}
	order := bySize(rs)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(fits[a], fits[b]) })
	if out := p.tryGang(rs, order, p.preferredPlacements); out != nil {
		return out, nil
	}
	apart := slices.ContainsFunc(rs, func(r Request) bool { return p.shapeOf(&r).Apart() })
	if apart || slices.ContainsFunc(rs, func(r Request) bool { return r.GPUs > 0 && !r.Whole }) {
		every := func(r *Request) iter.Seq[Placement] { return p.everyPlacement(r, apart) }
		if out := p.tryGang(rs, order, every); out != nil {
			return out, nil
		}
	}
	return nil, fmt.Errorf("place group of %d: %w", len(rs), why)
}

// tryGang tries placements of every request, in order, until all are placed; nil where they
// cannot be.
func (p *Planner) tryGang(rs []Request, order []int, placements func(*Request) iter.Seq[Placement]) []Placement {
	out := make([]Placement, len(rs))
	tries := mostGangTries
	var from func(n int) bool
	from = func(n int) bool {
		if n == len(order) {
			return true
		}
		i := order[n]
		for pl := range placements(&rs[i]) {
			if tries--; tries < 0 {
				return false
			}
			if p.overLimits(&rs[i], &pl.Usage) || p.snap.Apply(pl.Usage) != nil {
				continue
			}
			out[i] = pl
			done := from(n + 1)
			p.snap.MustRelease(pl.Usage.ID)
			if done {
				return true
			}
		}
		return false
	}
	if !from(0) {
		return nil
	}
	return out
}

// preferredPlacements yields a placement on each class of pools: on the first pool, and on the
// GPUs that the policy prefers.
func (p *Planner) preferredPlacements(r *Request) iter.Seq[Placement] {
	return func(yield func(Placement) bool) {
		for _, b := range p.choices(r, false) {
			if !yield(p.placement(r, p.shapeOf(r), b)) {
				return
			}
		}
	}
}

// everyPlacement yields the placements that leave different capacity free on a pool. With
// apart, for other requests that tell pools of one state apart, they are on every pool. The
// score of each is that of the pool.
func (p *Planner) everyPlacement(r *Request, apart bool) iter.Seq[Placement] {
	return func(yield func(Placement) bool) {
		sh := p.shapeOf(r)
		for _, b := range p.choices(r, apart) {
			preferred := p.placement(r, sh, b)
			for gpus := range sh.GPUSets(p.snap, b) {
				pl := preferred
				pl.Usage.Takes = slices.Clone(preferred.Usage.Takes)
				for n, i := range gpus {
					pl.Usage.Takes[n].GPU = b.Positions[i]
				}
				if !yield(pl) {
					return
				}
			}
		}
	}
}

// overLimits reports whether a quota forbids what a placement takes.
func (p *Planner) overLimits(r *Request, u *Usage) bool {
	return p.quotas != nil && (p.quotas.Limited(p.snap, r.Queue, p.shapeOf(r).LeastCharge(p.snap)) != nil || p.withinLimits(u) != nil)
}

// choices are the pools that a request fits now, the best first: of those that are alike to it
// one, or each.
func (p *Planner) choices(r *Request, each bool) []*cluster.Pool {
	sh := p.shapeOf(r)
	ix := p.indexOf(sh)
	var sets []int
	for id := range ix.List.List {
		if ix.Tree.Scores()[id] != score.Worst {
			sets = append(sets, id)
		}
	}
	slices.SortFunc(sets, func(a, b int) int {
		return cmp.Or(cmp.Compare(ix.Tree.Scores()[b], ix.Tree.Scores()[a]), cmp.Compare(ix.List.First[a], ix.List.First[b]))
	})
	var pools []*cluster.Pool
	for _, id := range sets {
		if !each {
			pools = append(pools, ix.PoolOf(id))
			continue
		}
		for _, pool := range ix.List.List[id].Pools {
			pools = append(pools, p.snap.Pools[pool])
		}
	}
	return pools
}
