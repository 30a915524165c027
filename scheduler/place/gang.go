package place

import (
	"cmp"
	"fmt"
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
// where each of its tasks would go by itself.
const mostGangTries = 2000

// searchGang tries the nodes of every class for every request, those first that
// have the fewest, the best nodes first, and goes back where it gets no further.
func (p *Planner) searchGang(rs []Request, why error) ([]Placement, error) {
	fits := make([]int, len(rs))
	for i := range rs {
		if fits[i] = len(p.choices(&rs[i])); fits[i] == 0 {
			return nil, fmt.Errorf("place group of %d: %w", len(rs), why)
		}
	}
	order := bySize(rs)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(fits[a], fits[b]) })
	out := make([]Placement, len(rs))
	tries := mostGangTries
	var from func(n int) bool
	from = func(n int) bool {
		if n == len(order) {
			return true
		}
		i := order[n]
		for _, b := range p.choices(&rs[i]) {
			if tries--; tries < 0 {
				return false
			}
			pl := p.placement(&rs[i], p.shapeOf(&rs[i]), b)
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
		return nil, fmt.Errorf("place group of %d: %w", len(rs), why)
	}
	return out, nil
}

// overLimits reports whether a quota forbids what a placement takes.
func (p *Planner) overLimits(r *Request, u *Usage) bool {
	return p.quotas != nil && (p.quotas.Limited(p.snap, r.Queue, p.shapeOf(r).LeastCharge(p.snap)) != nil || p.withinLimits(u) != nil)
}

// choices are the pools that a request fits now, one of each that are alike, the best
// first.
func (p *Planner) choices(r *Request) []*cluster.Pool {
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
	pools := make([]*cluster.Pool, len(sets))
	for i, id := range sets {
		pools[i] = ix.PoolOf(id)
	}
	return pools
}
