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
func boundOf(p *evictable, sh *Shape, nd *need) bound {
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
func shortOf(p *evictable, sh *Shape, nd *need) int32 {
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
func (e *eviction) best() *victimSet {
	if e.hopeless() {
		return nil
	}
	targets := e.targets()
	var best *victimSet
	for _, l := range targets {
		if best != nil && (l.bound.compare(best.bound()) > 0 || e.free(best, l)) {
			return best
		}
		best = e.better(best, l.id)
	}
	if len(targets) < searched {
		return best // there are no more
	}
	last := targets[searched-1]
	for id := range e.snap.evictables {
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
func (e *eviction) better(best *victimSet, id int) *victimSet {
	b := e.snap.pools[id]
	if !e.sh.could(e.snap, b) {
		return best
	}
	if sp, ok := e.search(b); ok && (best == nil || e.compareVictims(sp, best) < 0) {
		return sp
	}
	return best
}

// targets lists the most promising pools, the best first.
func (e *eviction) targets() []target {
	out := make([]target, 0, searched+1)
	for id := range e.snap.evictables {
		full := len(out) == searched
		if full && lowerBound(&e.snap.evictables[id], id).compare(out[searched-1]) >= 0 {
			continue
		}
		l, ok := e.target(id)
		if !ok || full && l.compare(out[searched-1]) >= 0 || !e.sh.could(e.snap, e.snap.pools[id]) {
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
func (e *eviction) target(id int) (target, bool) {
	p := &e.snap.evictables[id]
	if !p.held || (p.priority >= e.r.Priority && !e.reclaims()) {
		return target{}, false
	}
	nd := &need{ok: true} // of shapes without GPUs
	if e.sh.req.GPUs > 0 {
		if p.kind < 0 {
			return target{}, false
		}
		nd = e.sh.need(e.snap, p.kind)
	}
	l := target{boundOf(p, e.sh, nd), id}
	return l, nd.ok && (l.top < e.r.Priority || e.reclaims())
}

// helps reports whether evictions on the node, which has no room for the shape, would make it fit.
func (e *eviction) helps(n *nodeState) bool {
	return slices.ContainsFunc(n.pools, func(b *gpuPool) bool {
		if _, ok := e.target(int(b.id)); !ok || !e.sh.could(e.snap, b) {
			return false
		}
		candidates := e.candidates(b)
		return len(candidates) > 0 && e.trial(b).empty(candidates)
	})
}
