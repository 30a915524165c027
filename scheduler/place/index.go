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
	by        *Scorer
	task      *Task
	list      *cluster.Classes
	at        int64                  // position in the log
	epoch     int                    // prices that the points were computed with
	lessons   int                    // demand that the estimates were computed with
	fits      []classFit             // per class; apart from the estimates, of which few are looked at
	estimates []estimate             // of the classes that can take the shape
	places    []forecast.PlaceCounts // what a placement would break, where tasks end
	tree      ranking.Tree           // points per class
	tied      []int32                // scratch
}

// classFit is whether a class can take the shape of an index.
type classFit uint8

const (
	unseen classFit = iota
	unfit
	evaluated // it can
)

func newIndex(by *Scorer, task *Task) *index {
	return &index{by: by, task: task, list: task.Classes(by.snap)}
}

// sync brings the index up to date.
func (ix *index) sync() {
	ix.grow(len(ix.list.List))
	if ids, ok := ix.behind(); ok {
		ix.follow(ids)
	} else {
		ix.rebuild()
	}
	ix.at, ix.epoch, ix.lessons = ix.list.Log.End(), ix.by.epoch, ix.by.lessons
}

// behind returns the changes that an index has not followed; ok is false when it
// is better to look at every class.
func (ix *index) behind() (ids []int32, ok bool) {
	ids, ok = ix.list.Log.Since(ix.at)
	return ids, ok && ix.lessons == ix.by.lessons && len(ids) <= len(ix.list.List)
}

// rebuild looks at all classes, but evaluates only what is new.
func (ix *index) rebuild() {
	if ix.lessons != ix.by.lessons {
		clear(ix.fits)
		ix.places = nil
		ix.at = 0
	}
	leaf := ix.tree.Scores()
	for id := range ix.list.List {
		if ix.list.List[id].Stamp >= ix.at {
			leaf[id] = worst
			if ix.evaluateClass(id) {
				leaf[id] = 0
			}
		}
	}
	ix.reprice()
}

// follow looks at the classes that changed, each once, and reprices when prices
// are new.
func (ix *index) follow(ids []int32) {
	stale := ix.epoch != ix.by.epoch
	all := stale || len(ids)*16 > len(ix.list.List) // cheaper then
	for i, id := range ids {
		if ix.list.List[id].Stamp != ix.at+int64(i) {
			continue // changed again later
		}
		pts := int32(worst)
		if ix.evaluateClass(int(id)) {
			if pts = 0; !stale {
				pts = ix.by.points(&ix.estimates[id], ix.broken(int(id)), ix.task)
			}
		}
		if all {
			ix.tree.Scores()[id] = pts
		} else {
			ix.tree.Set(int(id), pts)
		}
	}
	if stale {
		ix.reprice()
	} else if all {
		ix.tree.Rebuild()
	}
}

// evaluateClass evaluates the first pool of a class when the state is new to the index, and
// reports whether the class can take the shape.
func (ix *index) evaluateClass(id int) bool {
	cl, state := &ix.list.List[id], &ix.fits[id]
	if cl.Born >= ix.at {
		*state = unseen
	}
	if len(cl.Pools) == 0 {
		return false
	}
	if *state == unseen {
		*state = unfit
		if !ix.task.Lacks(ix.by.snap, cl) {
			if b := ix.poolOf(id); ix.task.Fit(ix.by.snap, b) == fit.Fits {
				*state = evaluated
				ix.by.evaluateRoughly(&ix.estimates[id], ix.task, b)
				ix.setPlaces(b, id)
			}
		}
	}
	return *state == evaluated
}

// setPlaces notes what a placement would break.
func (ix *index) setPlaces(b *cluster.Pool, id int) {
	if !ix.by.turnover.Lives {
		return
	}
	if len(ix.places) < len(ix.estimates) {
		ix.places = append(ix.places, make([]forecast.PlaceCounts, len(ix.estimates)-len(ix.places))...)
	}
	ix.places[id] = ix.by.breaks(ix.task.Shape, b, int32(ix.estimates[id].roughIdle))
}

// broken is what a placement on a class would break; nil where nothing is known.
func (ix *index) broken(id int) *forecast.PlaceCounts {
	if id < len(ix.places) {
		return &ix.places[id]
	}
	return nil
}

// poolOf is the pool that stands for a class: the first.
func (ix *index) poolOf(id int) *cluster.Pool { return ix.by.snap.Pools[ix.list.First[id]] }

// pick returns the class with the highest points, of several the one that has the
// first pool. Classes whose points are rough, and so the most that they can be,
// are refined when they come to the top: most never are.
func (ix *index) pick() (id int, ok bool) {
	for {
		ix.tied = ix.tree.Top(ix.tied[:0], ix.list.Ordered) // where the list is ordered, later pools cannot win
		if len(ix.tied) == 0 {
			return 0, false
		}
		id = ix.first(ix.tied)
		if ix.estimates[id].known != rough {
			return id, true
		}
		ix.refineTied(ix.tied)
	}
}

// refineTied refines the classes with the highest points, in the order of their first
// pools, until one keeps its points. So many may tie that finding them anew for
// each would take too long.
func (ix *index) refineTied(tied []int32) {
	top := ix.tree.Scores()[tied[0]]
	slices.SortFunc(tied, func(a, b int32) int { return cmp.Compare(ix.list.First[a], ix.list.First[b]) })
	for _, id := range tied {
		if ix.estimates[id].known == rough {
			ix.refineAt(int(id))
		}
		if ix.tree.Scores()[id] == top {
			return
		}
	}
}

// refineAt makes the estimate of a class fine.
func (ix *index) refineAt(id int) {
	b, v := ix.poolOf(id), &ix.estimates[id]
	ix.by.evaluateFinely(v, ix.task, b)
	ix.tree.Set(id, ix.by.points(v, ix.broken(id), ix.task))
}

// reprice recomputes all points from the estimates at new prices.
func (ix *index) reprice() {
	leaf := ix.tree.Scores()
	for id := range leaf {
		if leaf[id] != worst {
			leaf[id] = ix.by.points(&ix.estimates[id], ix.broken(id), ix.task)
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
