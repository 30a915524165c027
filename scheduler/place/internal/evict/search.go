// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// Set is a set of victims on one pool, with their cost.
type Set struct {
	Pool    *cluster.Pool
	Victims []*cluster.Usage
	top     int    // highest priority among them
	first   string // of their queues the one whose turn comes first
	lost    int64  // work lost, milli-seconds
}

// CompareVictims orders by lowest priority, fewest victims, those whose queues come last
// in the order ([quota.Order]), least work lost, then by the place of the pool. Where work
// is moved, by least work lost, then fewest.
func (e *Eviction) CompareVictims(a, b *Set) int {
	if e.Movable != nil {
		return cmp.Or(cmp.Compare(a.lost, b.lost), cmp.Compare(len(a.Victims), len(b.Victims)), cmp.Compare(a.Pool.ID, b.Pool.ID))
	}
	return cmp.Or(a.bound().compare(b.bound()), e.compareQueues(b.first, a.first), cmp.Compare(a.lost, b.lost), cmp.Compare(a.Pool.ID, b.Pool.ID))
}

// compareQueues is negative when it is the turn of queue a before that of queue b.
func (e *Eviction) compareQueues(a, b string) int {
	if e.order == nil {
		return 0
	}
	return e.order.CompareQueues(a, b)
}

func (sp *Set) bound() bound { return bound{top: sp.top, victims: len(sp.Victims)} }

// losesNothing reports that victims lose no work, and that a target cannot do with fewer or
// with those of another queue.
func (e *Eviction) losesNothing(sp *Set, l target) bool {
	return e.order == nil && sp.lost == 0 && l.bound.compare(sp.bound()) >= 0
}

// add makes a usage one of the victims of an eviction.
func (sp *Set) add(u *cluster.Usage, e *Eviction) {
	if len(sp.Victims) == 0 || u.Priority > sp.top {
		sp.top = u.Priority
	}
	if len(sp.Victims) == 0 || e.compareQueues(u.Queue, sp.first) < 0 {
		sp.first = u.Queue
	}
	sp.lost += u.LostMilliSeconds(e.now)
	sp.Victims = append(sp.Victims, u)
}

// Sets are the cheapest victims on a pool that make room for the shape, and the cheapest one that
// is enough, as far as there are such.
func (e *Eviction) Sets(b *cluster.Pool) []*Set {
	set, ok := e.search(b)
	if !ok {
		return nil
	}
	sets := []*Set{set}
	if one := e.alone(e.trial(b), e.candidates(b)); one != nil {
		sets = append(sets, one)
	}
	return sets
}

// search finds victims on a pool that make room for the shape. One victim that
// is enough is found by trying each. Where it takes several, all candidates are
// taken, then given back as long as the task fits, in several orders of which
// the best outcome counts (see [Eviction.fillBack]); where there might be fewer, sets of
// them are tried ([Eviction.fewest]).
func (e *Eviction) search(b *cluster.Pool) (*Set, bool) {
	room, candidates := e.trial(b), e.candidates(b)
	one := e.alone(room, candidates)
	if one != nil && one.top == lowest(candidates) {
		return one, true
	}
	if !room.empty(candidates) {
		return nil, false
	}
	best := e.fillBack(room, candidates, room.value)
	e.consider(&best, one)
	e.consider(&best, e.fillBack(room, candidates, func(u *cluster.Usage) int64 { return -u.LostMilliSeconds(e.now) }))
	if e.order != nil {
		queues := e.queuesOf(candidates)
		e.consider(&best, e.fillBack(room, candidates, func(u *cluster.Usage) int64 { return int64(slices.Index(queues, u.Queue)) }))
	}
	if len(best.Victims) <= 2 {
		return best, true // fewer would be one, and be known
	}
	for gpus := range combinations(len(b.GPUs), e.sh.Req.GPUs) {
		e.consider(&best, e.fillBack(room, candidates, func(u *cluster.Usage) int64 {
			if room.touches(u, gpus) {
				return room.value(u) + 1<<40
			}
			return room.value(u)
		}))
	}
	return e.fewest(b, candidates, best), true
}

// queuesOf lists the queues of some work in their order.
func (e *Eviction) queuesOf(work []*cluster.Usage) []string {
	var queues []string
	for _, u := range work {
		if !slices.Contains(queues, u.Queue) {
			queues = append(queues, u.Queue)
		}
	}
	slices.SortFunc(queues, func(a, b string) int { return cmp.Or(e.compareQueues(a, b), strings.Compare(a, b)) })
	return queues
}

func (e *Eviction) consider(best **Set, other *Set) {
	if other != nil && e.CompareVictims(other, *best) < 0 {
		*best = other
	}
}

// alone is the cheapest single victim that is enough; nil when none is.
func (e *Eviction) alone(room *trial, candidates []*cluster.Usage) *Set {
	var best *Set
	for _, u := range candidates {
		if best != nil && cmp.Or(cmp.Compare(u.Priority, best.top), e.compareQueues(best.first, u.Queue), cmp.Compare(u.LostMilliSeconds(e.now), best.lost)) >= 0 {
			continue
		}
		room.add(u, 1)
		if room.fits() {
			best = &Set{Pool: room.pool}
			best.add(u, e)
		}
		room.add(u, -1)
	}
	return best
}

func lowest(candidates []*cluster.Usage) int {
	return slices.MinFunc(candidates, func(a, b *cluster.Usage) int { return cmp.Compare(a.Priority, b.Priority) }).Priority
}

// fillBack gives candidates back as long as the shape fits: the highest priority
// first, and of one priority the lowest rank first. It returns those that must
// go, and leaves the room as it was. By size as rank, few large ones remain; by
// work lost, cheap ones; with those on certain GPUs last, those GPUs are freed.
func (e *Eviction) fillBack(room *trial, candidates []*cluster.Usage, rank func(*cluster.Usage) int64) *Set {
	slices.SortFunc(candidates, func(x, y *cluster.Usage) int {
		return cmp.Or(
			cmp.Compare(y.Priority, x.Priority), cmp.Compare(rank(x), rank(y)),
			cmp.Compare(y.LostMilliSeconds(e.now), x.LostMilliSeconds(e.now)), cmp.Compare(x.ID, y.ID),
		)
	})
	sp := &Set{Pool: room.pool}
	var kept []*cluster.Usage
	for _, u := range candidates {
		room.add(u, -1)
		if room.fits() {
			kept = append(kept, u)
			continue
		}
		room.add(u, 1)
		sp.add(u, e)
	}
	for _, u := range kept {
		room.add(u, 1)
	}
	return sp
}

// candidates lists the work that may be evicted from a pool's node.
func (e *Eviction) candidates(b *cluster.Pool) []*cluster.Usage {
	e.findRanks()
	var out []*cluster.Usage
	for _, u := range b.Node.Holders {
		if e.allowed(u) {
			out = append(out, u)
		}
	}
	return out
}

// mostCombinations bounds how many sets of GPUs are tried: any number of eight.
const mostCombinations = 70

// combinations yields the sets of k out of n GPUs as bit masks, in ascending
// order; none when there are too many to try.
func combinations(n, k int) func(yield func(uint64) bool) {
	return func(yield func(uint64) bool) {
		if k == 0 || count(n, k) > mostCombinations {
			return
		}
		end := uint64(1) << n
		for set := uint64(1)<<k - 1; set < end; {
			if !yield(set) {
				return
			}
			low := set & -set // next larger number with as many bits
			ripple := set + low
			set = ripple | ((set^ripple)/low)>>2
		}
	}
}

// count is the number of sets of k out of n, or more than mostCombinations.
func count(n, k int) int {
	c := 1
	for i := range min(k, n-k) {
		if c = c * (n - i) / (i + 1); c > mostCombinations {
			break
		}
	}
	return c
}
