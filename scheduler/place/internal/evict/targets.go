// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"cmp"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// bound is the least that victims on a pool can cost, in the order that
// [Eviction.CompareVictims] has: no set found there is cheaper.
type bound struct {
	top     int // highest priority among the victims
	victims int
	since   int64 // of equal bounds, the one with the youngest work is tried first
}

func (a bound) compare(b bound) int {
	if a.top != b.top {
		return cmp.Compare(a.top, b.top)
	}
	return cmp.Compare(a.victims, b.victims)
}

// boundOf is the bound of an evictable for a shape. Where the lowest priority does not
// hold as much as is missing, a higher one must give way too.
func boundOf(p *cluster.Evictable, sh *fit.Shape, nd *fit.Need) bound {
	b := bound{top: p.Priority, victims: 1, since: p.Youngest}
	missing := missingMilli(p, sh, nd)
	if missing > p.Milli {
		b.top++
	}
	if p.Largest > 0 && missing > p.Largest {
		b.victims = int((missing + p.Largest - 1) / p.Largest)
	}
	return b
}

// lowerBound is what no target to the pool is better than, whatever the shape.
func lowerBound(p *cluster.Evictable, id int) target {
	return target{bound{top: p.Priority, victims: 1, since: p.Youngest}, id}
}

// missingMilli is the least GPU that must be freed, in milli.
func missingMilli(p *cluster.Evictable, sh *fit.Shape, nd *fit.Need) int32 {
	gpus := int32(sh.Req.GPUs) - int32(p.Idle)
	if gpus <= 0 {
		return 0
	}
	perGPU := max(0, int32(nd.Take.Milli)-p.Partly.Milli)
	if missing := int32(nd.Take.Slices) - p.Partly.Slices; missing > 0 {
		perGPU = max(perGPU, int32(int64(missing)*cluster.GPUMilli/int64(p.Slices)))
	}
	return gpus * perGPU
}

// target is a pool worth a search, with the best possible outcome there.
type target struct {
	bound
	id int
}

func (a target) compare(b target) int {
	if c := a.bound.compare(b.bound); c != 0 {
		return c
	}
	if a.since != b.since {
		return cmp.Compare(b.since, a.since)
	}
	return cmp.Compare(a.id, b.id)
}

// searched is how many pools are searched for victims in any case: those that
// promise the lowest priority, then the fewest victims, then the youngest work.
const searched = 32

// Best finds the cheapest victims: on no other pool are they of lower priority
// or fewer. Of equally many, those of the pools in searched that lose the least
// work.
func (e *Eviction) Best() *Set {
	if e.Hopeless() {
		return nil
	}
	targets := e.targets()
	var best *Set
	for _, l := range targets {
		if best != nil && (l.bound.compare(best.bound()) > 0 || e.losesNothing(best, l)) {
			return best
		}
		best = e.better(best, l.id)
	}
	if len(targets) < searched {
		return best // there are no more
	}
	last := targets[searched-1]
	for id := range e.snap.Evictables {
		if best != nil && last.bound.compare(best.bound()) >= 0 {
			return best // nor can others do better
		}
		l, ok := e.target(id)
		if ok && l.compare(last) > 0 && (best == nil || l.bound.compare(best.bound()) < 0) {
			best = e.better(best, id)
		}
	}
	return best
}

// better is the cheaper of some victims and those of a pool.
func (e *Eviction) better(best *Set, id int) *Set {
	b := e.snap.Pools[id]
	if !e.sh.Could(e.snap, b) {
		return best
	}
	if sp, ok := e.search(b); ok && (best == nil || e.CompareVictims(sp, best) < 0) {
		return sp
	}
	return best
}

// targets lists the most promising pools, the best first.
func (e *Eviction) targets() []target {
	out := make([]target, 0, searched+1)
	for id := range e.snap.Evictables {
		full := len(out) == searched
		if full && lowerBound(&e.snap.Evictables[id], id).compare(out[searched-1]) >= 0 {
			continue
		}
		l, ok := e.target(id)
		if !ok || full && l.compare(out[searched-1]) >= 0 || !e.sh.Could(e.snap, e.snap.Pools[id]) {
			continue
		}
		at, _ := slices.BinarySearchFunc(out, l, target.compare)
		out = slices.Insert(out, at, l)
		out = out[:min(searched, len(out))]
	}
	return out
}

// target is a pool as a target; ok is false when nothing there may go, or not
// enough.
func (e *Eviction) target(id int) (target, bool) {
	p := &e.snap.Evictables[id]
	if !p.Held || (p.Priority >= e.r.Priority && !e.reclaims()) {
		return target{}, false
	}
	nd := &fit.Need{OK: true} // of shapes without GPUs
	if e.sh.Req.GPUs > 0 {
		if p.Kind < 0 {
			return target{}, false
		}
		nd = e.sh.Need(e.snap, p.Kind)
	}
	l := target{boundOf(p, e.sh, nd), id}
	return l, nd.OK && (l.top < e.r.Priority || e.reclaims())
}

// helps reports whether evictions on the node, which has no room for the shape, would make it fit.
func (e *Eviction) helps(n *cluster.NodeState) bool {
	return slices.ContainsFunc(n.Pools, func(b *cluster.Pool) bool {
		if _, ok := e.target(int(b.ID)); !ok || !e.sh.Could(e.snap, b) {
			return false
		}
		candidates := e.candidates(b)
		return len(candidates) > 0 && e.trial(b).empty(candidates)
	})
}

// Nearest lists the pools that could take the shape, those first where the least GPU is
// missing, as many as are searched for victims in any case.
func (e *Eviction) Nearest() []*cluster.Pool {
	type option struct {
		pool  *cluster.Pool
		short int32
	}
	var all []option
	for _, b := range e.snap.Pools {
		if b == nil || !e.sh.Could(e.snap, b) || !e.snap.Evictables[b.ID].Held {
			continue
		}
		nd := &fit.Need{OK: true}
		if e.sh.Req.GPUs > 0 {
			nd = e.sh.Need(e.snap, b.Kind)
		}
		all = append(all, option{b, missingMilli(&e.snap.Evictables[b.ID], e.sh, nd)})
	}
	slices.SortStableFunc(all, func(a, b option) int { return cmp.Compare(a.short, b.short) })
	out := make([]*cluster.Pool, 0, searched)
	for _, a := range all[:min(searched, len(all))] {
		out = append(out, a.pool)
	}
	return out
}
