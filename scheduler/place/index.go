package place

import (
	"cmp"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/ranking"
)

// index remembers, for one shape, the estimate and points of every class of
// pools in a list, and finds the best pool without looking at all of them. It follows
// the snapshot through the list's log: a class is evaluated when its state is new.
type index struct {
	list      *cluster.Classes
	at        int64                  // position in the log
	epoch     int                    // prices that the points were computed with
	lessons   int                    // demand that the estimates were computed with
	look      int                    // number of looks of the planner when it was last asked
	fits      []classFit             // per class; apart from the estimates, of which few are looked at
	estimates []estimate             // of the classes that can take the shape
	places    []forecast.PlaceCounts // what a placement would break, where tasks end
	tree      ranking.Tree           // points per class
}

// classFit is whether a class can take the shape of an index.
type classFit uint8

const (
	unseen classFit = iota
	unfit
	evaluated // it can
)

// sync brings the index up to date.
func (p *Planner) sync(ix *index, sh *shape) {
	ix.grow(len(ix.list.List))
	if ids, ok := p.behind(ix); ok {
		p.follow(ix, sh, ids)
	} else {
		p.rebuild(ix, sh)
	}
	ix.at, ix.epoch, ix.lessons, ix.look = ix.list.Log.End(), p.epoch, p.lessons, p.looks
}

// behind returns the changes that an index has not followed; ok is false when it
// is better to look at every class.
func (p *Planner) behind(ix *index) (ids []int32, ok bool) {
	ids, ok = ix.list.Log.Since(ix.at)
	return ids, ok && ix.lessons == p.lessons && len(ids) <= len(ix.list.List)
}

// rebuild looks at all classes, but evaluates only what is new.
func (p *Planner) rebuild(ix *index, sh *shape) {
	if ix.lessons != p.lessons {
		clear(ix.fits)
		ix.places = nil
		ix.at = 0
	}
	leaf := ix.tree.Scores()
	for id := range ix.list.List {
		if ix.list.List[id].Stamp >= ix.at {
			leaf[id] = worst
			if p.evaluateClass(ix, sh, id) {
				leaf[id] = 0
			}
		}
	}
	p.reprice(ix, sh)
}

// follow looks at the classes that changed, each once, and reprices when prices
// are new.
func (p *Planner) follow(ix *index, sh *shape, ids []int32) {
	stale := ix.epoch != p.epoch
	all := stale || len(ids)*16 > len(ix.list.List) // cheaper then
	for i, id := range ids {
		if ix.list.List[id].Stamp != ix.at+int64(i) {
			continue // changed again later
		}
		pts := int32(worst)
		if p.evaluateClass(ix, sh, int(id)) {
			if pts = 0; !stale {
				pts = sh.policy.score(p, &ix.estimates[id], ix.broken(int(id)), sh)
			}
		}
		if all {
			ix.tree.Scores()[id] = pts
		} else {
			ix.tree.Set(int(id), pts)
		}
	}
	if stale {
		p.reprice(ix, sh)
	} else if all {
		ix.tree.Rebuild()
	}
}

// evaluateClass evaluates the first pool of a class when the state is new to the index, and
// reports whether the class can take the shape.
func (p *Planner) evaluateClass(ix *index, sh *shape, id int) bool {
	cl, state := &ix.list.List[id], &ix.fits[id]
	if cl.Born >= ix.at {
		*state = unseen
	}
	if len(cl.Pools) == 0 {
		return false
	}
	if *state == unseen {
		*state = unfit
		if !sh.Lacks(p.snap, cl) {
			if b := p.poolOf(ix, id); sh.Fit(p.snap, b) == fit.Fits {
				*state = evaluated
				p.evaluateRoughly(&ix.estimates[id], sh, b)
				p.setPlaces(ix, sh, b, id)
			}
		}
	}
	return *state == evaluated
}

// setPlaces notes what a placement would break.
func (p *Planner) setPlaces(ix *index, sh *shape, b *cluster.Pool, id int) {
	if !p.turnover.Lives {
		return
	}
	if len(ix.places) < len(ix.estimates) {
		ix.places = append(ix.places, make([]forecast.PlaceCounts, len(ix.estimates)-len(ix.places))...)
	}
	ix.places[id] = p.breaks(sh, b, int32(ix.estimates[id].roughIdle))
}

// broken is what a placement on a class would break; nil where nothing is known.
func (ix *index) broken(id int) *forecast.PlaceCounts {
	if id < len(ix.places) {
		return &ix.places[id]
	}
	return nil
}

// poolOf is the pool that stands for a class: the first.
func (p *Planner) poolOf(ix *index, id int) *cluster.Pool { return p.snap.Pools[ix.list.First[id]] }

// pick returns the class with the highest points, of several the one that has the
// first pool. Classes whose points are rough, and so the most that they can be,
// are refined when they come to the top: most never are.
func (p *Planner) pick(ix *index, sh *shape) (id int, ok bool) {
	for {
		p.tied = ix.tree.Top(p.tied[:0], ix.list.Ordered) // where the list is ordered, later pools cannot win
		if len(p.tied) == 0 {
			return 0, false
		}
		id = ix.first(p.tied)
		if ix.estimates[id].known != rough {
			return id, true
		}
		p.refineTied(ix, sh, p.tied)
	}
}

// refineTied refines the classes with the highest points, in the order of their first
// pools, until one keeps its points. So many may tie that finding them anew for
// each would take too long.
func (p *Planner) refineTied(ix *index, sh *shape, tied []int32) {
	top := ix.tree.Scores()[tied[0]]
	slices.SortFunc(tied, func(a, b int32) int { return cmp.Compare(ix.list.First[a], ix.list.First[b]) })
	for _, id := range tied {
		if ix.estimates[id].known == rough {
			p.refineAt(ix, sh, int(id))
		}
		if ix.tree.Scores()[id] == top {
			return
		}
	}
}

// refineAt makes the estimate of a class fine.
func (p *Planner) refineAt(ix *index, sh *shape, id int) {
	b, v := p.poolOf(ix, id), &ix.estimates[id]
	p.evaluateFinely(v, sh, b)
	ix.tree.Set(id, sh.policy.score(p, v, ix.broken(id), sh))
}

// reprice recomputes all points from the estimates at new prices.
func (p *Planner) reprice(ix *index, sh *shape) {
	leaf := ix.tree.Scores()
	for id := range leaf {
		if leaf[id] != worst {
			leaf[id] = sh.policy.score(p, &ix.estimates[id], ix.broken(id), sh)
		}
	}
	ix.tree.Rebuild()
}

// grow makes room for n classes, and some more.
func (ix *index) grow(n int) {
	if len(ix.estimates) >= n && !ix.tree.Empty() {
		return
	}
	n += n/2 + spareClasses
	ix.fits = append(ix.fits, make([]classFit, n-len(ix.fits))...)
	ix.estimates = append(ix.estimates, make([]estimate, n-len(ix.estimates))...)
	ix.tree.Grow(n)
}

// spareClasses is how many classes more an index makes room for, besides half as many
// again.
const spareClasses = 64

// first is the one of some classes that has the first pool.
func (ix *index) first(ids []int32) int {
	best := ids[0]
	for _, id := range ids[1:] {
		if ix.list.First[id] < ix.list.First[best] {
			best = id
		}
	}
	return int(best)
}
