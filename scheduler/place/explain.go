// SPDX-License-Identifier: MPL-2.0

package place

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/score"
)

// Candidate is a node that could take the request, with its score.
type Candidate struct {
	NodeID string
	Score  int64 // thousandths: the sum of the terms
	Terms  []Term
	// LostMilli is what the placement takes from later work, in thousandths of a GPU; below
	// 0 it leaves more than before.
	LostMilli int64
	// Whole is how many GPUs of the node have nothing on them afterwards, WholeNow
	// before.
	Whole, WholeNow int
}

// Explanation is why a request has the answer it has.
type Explanation struct {
	Fits       int         // nodes that can take it now
	Candidates []Candidate // the winner and the runners-up
	Reasons    []Reason    // why the others cannot, most nodes first
	Quota      string      // why the queue's quota forbids it; empty: it does not
}

// Impossible reports that no node could hold the request even when empty.
func (e *Explanation) Impossible() bool {
	return e.Fits == 0 && !slices.ContainsFunc(e.Reasons, func(r Reason) bool { return !r.Never })
}

// explained is how many candidates an explanation lists.
const explained = 5

// Explain says where a request would go and why there, and why the other nodes
// cannot take it.
func (p *Planner) Explain(r *Request, now time.Time) (Explanation, error) {
	if err := r.Validate(); err != nil {
		return Explanation{}, err
	}
	p.prepare()
	sh := p.shapeOf(r)
	var e Explanation
	if p.quotas != nil {
		if err := p.quotas.Limited(p.snap, r.Queue, sh.LeastCharge(p.snap)); err != nil {
			e.Quota = err.Error()
		}
	}
	e.Candidates = p.candidates(sh)
	p.refuse(&e, r, sh, now)
	return e, nil
}

// candidates are the best pools for the shape, best first: those of the best classes,
// at least the best pool of each.
func (p *Planner) candidates(sh *shape) []Candidate {
	ix := p.indexOf(sh)
	var best []ranked
	points := map[int]int32{} // of the classes that were taken out
	for range explained {
		id, ok := ix.Pick()
		if !ok {
			break
		}
		points[id] = ix.Tree.Scores()[id]
		for _, pool := range ix.List.List[id].Pools[:min(explained, len(ix.List.List[id].Pools))] {
			best = append(best, ranked{pool, id})
		}
		ix.Tree.Set(id, score.Worst)
	}
	for id, pts := range points {
		ix.Tree.Set(id, pts)
	}
	slices.SortFunc(best, func(x, y ranked) int {
		return cmp.Or(cmp.Compare(points[y.class], points[x.class]), cmp.Compare(x.pool, y.pool))
	})
	var out []Candidate
	for _, r := range best[:min(explained, len(best))] {
		out = append(out, p.candidate(sh, p.snap.Pools[r.pool], &ix.Estimates[r.class], points[r.class]))
	}
	return out
}

// ranked is a pool and the class that it is in.
type ranked struct {
	pool  int32
	class int
}

func (p *Planner) candidate(sh *shape, b *cluster.Pool, v *score.Estimate, pts int32) Candidate {
	terms, lost := p.scorer.Terms(sh.Task, b, v, pts)
	beside := p.wholeBeside(b)
	return Candidate{NodeID: b.Node.Spec.ID, Score: int64(pts), Terms: terms, LostMilli: lost, Whole: p.wholeAfter(sh, b) + beside, WholeNow: int(b.Idle) + beside}
}

// wholeBeside is how many GPUs of a node have nothing on them that are of other pools than one.
func (p *Planner) wholeBeside(b *cluster.Pool) (idle int) {
	for _, other := range b.Node.Pools {
		if other != b && other.Kind >= 0 && p.snap.Kinds[other.Kind].Profile == "" {
			idle += int(other.Idle)
		}
	}
	return idle
}

// wholeAfter is how many GPUs of a pool have nothing on them once a task is on it.
func (p *Planner) wholeAfter(sh *shape, b *cluster.Pool) int {
	if b.Kind < 0 {
		return 0
	}
	return int(p.scorer.Chosen(sh.Task, b).Idle)
}

// refuse says how many nodes can take a request, why the others cannot and, where none
// can, how many would after evictions.
func (p *Planner) refuse(e *Explanation, r *Request, sh *shape, now time.Time) {
	if sh.refusals == nil {
		sh.refusals = &refusals{}
	}
	x := sh.refusals
	x.follow(p.snap, sh.Shape)
	e.Fits = x.fits
	reasons := slices.Clone(x.counts)
	someday := slices.ContainsFunc(reasons, func(why Reason) bool { return why.Nodes > 0 && !why.Never })
	if ev := p.eviction(r, sh, now, nil); x.fits == 0 && someday && !ev.Hopeless() {
		helps := x.gains.Helps(ev)
		for id, at := range x.of {
			if at >= 0 && !reasons[at].Never && helps(int32(id)) {
				reasons[at].Preempted++
			}
		}
	}
	e.Reasons = slices.DeleteFunc(reasons, func(why Reason) bool { return why.Nodes == 0 })
	slices.SortFunc(e.Reasons, func(a, b Reason) int {
		return cmp.Or(b.Nodes-a.Nodes, cmp.Compare(a.Why, b.Why))
	})
}

// Near is the GPU with the smallest shortage for a request.
type Near = fit.Near

// Nearest is the GPU that comes nearest to a request, of nodes that take it otherwise; false
// where there is none, or a node has room now.
func (p *Planner) Nearest(r *Request) (Near, bool) {
	if r.Validate() != nil || r.GPUs == 0 {
		return Near{}, false
	}
	p.prepare()
	return p.shapeOf(r).Nearest(p.snap)
}
