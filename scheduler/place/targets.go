package place

import (
	"cmp"
	"slices"
)

// bound is the least that victims on a pool can cost, in the order that
// [eviction.compareVictims] has: what is found there is never cheaper.
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
func boundOf(p *evictable, sh *shape, nd *need) bound {
	b := bound{top: p.priority, victims: 1, since: p.youngest}
	short := shortOf(p, sh, nd)
	if short > p.milli {
		b.top++
	}
	if p.largest > 0 && short > p.largest {
		b.victims = int((short + p.largest - 1) / p.largest)
	}
	return b
}

// lowerBound is what no target to the pool is better than, whatever the shape.
func lowerBound(p *evictable, id int) target {
	return target{bound{top: p.priority, victims: 1, since: p.youngest}, id}
}

// shortOf is the least GPU that must be freed, in milli.
func shortOf(p *evictable, sh *shape, nd *need) int32 {
	gpus := int32(sh.req.GPUs) - int32(p.idle)
	if gpus <= 0 {
		return 0
	}
	perGPU := max(0, int32(nd.take.Milli)-p.partly.milli)
	if missing := int32(nd.take.Slices) - p.partly.slices; missing > 0 {
		perGPU = max(perGPU, int32(int64(missing)*gpuMilli/int64(p.slices)))
	}
	return gpus * perGPU
}

// target is a pool worth a search, with what can be expected there at best.
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

// best finds the cheapest victims: on no other pool are they of lower priority
// or fewer. Of equally many, those of the pools in searched that lose the least
// work.
func (e *eviction) best(sh *shape) *victimSet {
	if e.hopeless() {
		return nil
	}
	targets := e.targets(sh)
	var best *victimSet
	for _, l := range targets {
		if best != nil && (l.bound.compare(best.bound()) > 0 || e.free(best, l)) {
			return best
		}
		best = e.better(best, sh, l.id)
	}
	if len(targets) < searched {
		return best // there are no more
	}
	last := targets[searched-1]
	for id := range e.p.snap.evictables {
		if best != nil && last.bound.compare(best.bound()) >= 0 {
			return best // nor can others do better
		}
		l, ok := e.target(sh, id)
		if ok && l.compare(last) > 0 && (best == nil || l.bound.compare(best.bound()) < 0) {
			best = e.better(best, sh, id)
		}
	}
	return best
}

// better is the cheaper of some victims and those of a pool.
func (e *eviction) better(best *victimSet, sh *shape, id int) *victimSet {
	b := e.p.snap.pools[id]
	if !sh.could(e.p.snap, b) {
		return best
	}
	if sp, ok := e.search(sh, b); ok && (best == nil || e.compareVictims(sp, best) < 0) {
		return sp
	}
	return best
}

// targets lists the most promising pools, the best first.
func (e *eviction) targets(sh *shape) []target {
	out := make([]target, 0, searched+1)
	for id := range e.p.snap.evictables {
		full := len(out) == searched
		if full && lowerBound(&e.p.snap.evictables[id], id).compare(out[searched-1]) >= 0 {
			continue
		}
		l, ok := e.target(sh, id)
		if !ok || full && l.compare(out[searched-1]) >= 0 || !sh.could(e.p.snap, e.p.snap.pools[id]) {
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
func (e *eviction) target(sh *shape, id int) (target, bool) {
	p := &e.p.snap.evictables[id]
	if !p.held || (p.priority >= e.r.Priority && !e.reclaims()) {
		return target{}, false
	}
	nd := &need{ok: true} // of shapes without GPUs
	if sh.req.GPUs > 0 {
		if p.kind < 0 {
			return target{}, false
		}
		nd = sh.need(e.p.snap, p.kind)
	}
	l := target{boundOf(p, sh, nd), id}
	return l, nd.ok && (l.top < e.r.Priority || e.reclaims())
}
