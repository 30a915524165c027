// SPDX-License-Identifier: MPL-2.0

package score

import (
	"cmp"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/ranking"
)

// Index remembers, for one shape, the estimate and points of every class of
// pools in a list, and finds the best pool without looking at all of them. It follows
// the snapshot through the list's log: a class is evaluated when its state is new.
type Index struct {
	by        *Scorer
	task      *Task
	List      *cluster.Classes
	at        int64                  // position in the log
	epoch     int                    // prices that the points were computed with
	lessons   int                    // demand that the estimates were computed with
	fits      []classFit             // per class; apart from the estimates, since few of those are looked at
	Estimates []Estimate             // of the classes that can take the shape
	places    []forecast.PlaceCounts // what a placement would break, where tasks end
	Tree      ranking.Tree           // points per class
	tied      []int32                // scratch
}

// classFit is whether a class can take the shape of an index.
type classFit uint8

const (
	unseen classFit = iota
	unfit
	evaluated // it can
)

// NewIndex is an index for a task that knows nothing yet.
func NewIndex(by *Scorer, task *Task) *Index {
	return &Index{by: by, task: task, List: task.Classes(by.snap)}
}

// Sync brings the index up to date.
func (ix *Index) Sync() {
	ix.grow(len(ix.List.List))
	if ids, ok := ix.Behind(); ok {
		ix.follow(ids)
	} else {
		ix.rebuild()
	}
	ix.at, ix.epoch, ix.lessons = ix.List.Log.End(), ix.by.Epoch, ix.by.Lessons
}

// Behind returns the changes that an index has not followed; ok is false when it
// is better to look at every class.
func (ix *Index) Behind() (ids []int32, ok bool) {
	ids, ok = ix.List.Log.Since(ix.at)
	return ids, ok && ix.lessons == ix.by.Lessons && len(ids) <= len(ix.List.List)
}

// rebuild looks at all classes, but evaluates only the new ones.
func (ix *Index) rebuild() {
	if ix.lessons != ix.by.Lessons {
		ix.places = nil
		ix.at = 0 // all states are new
	}
	leaf := ix.Tree.Scores()
	for id := range ix.List.List {
		if ix.List.List[id].Stamp >= ix.at {
			leaf[id] = Worst
			if ix.evaluateClass(id) {
				leaf[id] = 0
			}
		}
	}
	ix.reprice()
}

// follow looks at the classes that changed, each once, and reprices when prices
// are new.
func (ix *Index) follow(ids []int32) {
	stale := ix.epoch != ix.by.Epoch
	all := stale || len(ids)*16 > len(ix.List.List) // cheaper then
	for i, id := range ids {
		if ix.List.List[id].Stamp != ix.at+int64(i) {
			continue // changed again later
		}
		pts := int32(Worst)
		if ix.evaluateClass(int(id)) {
			if pts = 0; !stale {
				pts = ix.by.points(&ix.Estimates[id], ix.broken(int(id)), ix.task)
			}
		}
		if all {
			ix.Tree.Scores()[id] = pts
		} else {
			ix.Tree.Set(int(id), pts)
		}
	}
	if stale {
		ix.reprice()
	} else if all {
		ix.Tree.Rebuild()
	}
}

// evaluateClass evaluates the first pool of a class when the state is new to the index, and
// reports whether the class can take the shape.
func (ix *Index) evaluateClass(id int) bool {
	cl, state := &ix.List.List[id], &ix.fits[id]
	if cl.Born >= ix.at {
		*state = unseen
	}
	if len(cl.Pools) == 0 {
		return false
	}
	if *state == unseen {
		*state = unfit
		if !ix.task.Lacks(ix.by.snap, cl) {
			if b := ix.PoolOf(id); ix.task.Fit(ix.by.snap, b) == fit.Fits {
				*state = evaluated
				ix.by.evaluateRoughly(&ix.Estimates[id], ix.task, b)
				ix.setPlaces(b, id)
			}
		}
	}
	return *state == evaluated
}

// setPlaces notes what a placement would break.
func (ix *Index) setPlaces(b *cluster.Pool, id int) {
	if !ix.by.Turnover.Lives {
		return
	}
	if len(ix.places) < len(ix.Estimates) {
		ix.places = append(ix.places, make([]forecast.PlaceCounts, len(ix.Estimates)-len(ix.places))...)
	}
	ix.places[id] = ix.by.breaks(ix.task.Shape, b, int32(ix.Estimates[id].roughIdle))
}

// broken is what a placement on a class would break; nil where nothing is known.
func (ix *Index) broken(id int) *forecast.PlaceCounts {
	if id < len(ix.places) {
		return &ix.places[id]
	}
	return nil
}

// PoolOf is the pool that stands for a class: the first.
func (ix *Index) PoolOf(id int) *cluster.Pool { return ix.by.snap.Pools[ix.List.First[id]] }

// Pick returns the class with the highest points, of several the one that has the
// first pool. Classes whose points are rough, and so the most that they can be,
// are refined when they come to the top: most never are.
func (ix *Index) Pick() (id int, ok bool) {
	for {
		ix.tied = ix.Tree.Top(ix.tied[:0], ix.List.Ordered) // where the list is ordered, later pools cannot win
		if len(ix.tied) == 0 {
			return 0, false
		}
		id = ix.withFirstPool(ix.tied)
		if ix.Estimates[id].known != rough {
			return id, true
		}
		ix.refineTied(ix.tied)
	}
}

// PickExcept returns the pool that Pick would choose if some nodes were not there.
func (ix *Index) PickExcept(except map[string]bool) (best *cluster.Pool, ok bool) {
	out := map[int]int32{} // points of classes that are left out
	defer func() {
		for id, points := range out {
			ix.Tree.Set(id, points)
		}
	}()
	first, top := int32(0), int32(0)
	for {
		id, found := ix.Pick()
		if !found || best != nil && ix.Tree.Scores()[id] < top {
			return best, best != nil
		}
		top = ix.Tree.Scores()[id]
		out[id] = top
		ix.Tree.Set(id, Worst)
		for _, pool := range ix.List.List[id].Pools {
			if b := ix.by.snap.Pools[pool]; !except[b.Node.Spec.ID] {
				if best == nil || pool < first {
					best, first = b, pool
				}
				break
			}
		}
	}
}

// refineTied refines the classes with the highest points, in the order of their first
// pools, until one keeps its points. Too many may tie to find them again for
// each.
func (ix *Index) refineTied(tied []int32) {
	top := ix.Tree.Scores()[tied[0]]
	slices.SortFunc(tied, func(a, b int32) int { return cmp.Compare(ix.List.First[a], ix.List.First[b]) })
	for _, id := range tied {
		if ix.Estimates[id].known == rough {
			ix.refineAt(int(id))
		}
		if ix.Tree.Scores()[id] == top {
			return
		}
	}
}

// refineAt makes the estimate of a class fine.
func (ix *Index) refineAt(id int) {
	b, v := ix.PoolOf(id), &ix.Estimates[id]
	ix.by.evaluateFinely(v, ix.task, b)
	ix.Tree.Set(id, ix.by.points(v, ix.broken(id), ix.task))
}

// reprice recomputes all points from the estimates at new prices.
func (ix *Index) reprice() {
	leaf := ix.Tree.Scores()
	for id := range leaf {
		if leaf[id] != Worst {
			leaf[id] = ix.by.points(&ix.Estimates[id], ix.broken(id), ix.task)
		}
	}
	ix.Tree.Rebuild()
}

// grow makes room for n classes, and some more.
func (ix *Index) grow(n int) {
	if len(ix.Estimates) >= n && !ix.Tree.Empty() {
		return
	}
	n += n/2 + spareClasses
	ix.fits = append(ix.fits, make([]classFit, n-len(ix.fits))...)
	ix.Estimates = append(ix.Estimates, make([]Estimate, n-len(ix.Estimates))...)
	ix.Tree.Grow(n)
}

// spareClasses is how many classes more an index makes room for, besides half as many
// again.
const spareClasses = 64

// withFirstPool is the one of some classes that has the first pool.
func (ix *Index) withFirstPool(ids []int32) int {
	best := ids[0]
	for _, id := range ids[1:] {
		if ix.List.First[id] < ix.List.First[best] {
			best = id
		}
	}
	return int(best)
}
