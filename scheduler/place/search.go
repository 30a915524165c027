package place

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// victimSet is a set of victims on one pool, with what they cost.
type victimSet struct {
	pool    *cluster.Pool
	victims []*cluster.Usage
	top     int    // highest priority among them
	first   string // of their queues the one whose turn comes first
	lost    int64  // work lost, milli-seconds
}

// compareVictims orders by lowest priority, fewest victims, those whose queues come last
// in the order ([quota.Order]), least work lost, then by the place of the pool. Where work
// is moved, by least work lost, then fewest.
func (e *eviction) compareVictims(a, b *victimSet) int {
	if e.movable != nil {
		return cmp.Or(cmp.Compare(a.lost, b.lost), cmp.Compare(len(a.victims), len(b.victims)), cmp.Compare(a.pool.ID, b.pool.ID))
	}
	return cmp.Or(a.bound().compare(b.bound()), e.compareQueues(b.first, a.first), cmp.Compare(a.lost, b.lost), cmp.Compare(a.pool.ID, b.pool.ID))
}

// compareQueues is negative when it is the turn of queue a before that of queue b.
func (e *eviction) compareQueues(a, b string) int {
	if e.order == nil {
		return 0
	}
	return e.order.CompareQueues(a, b)
}

func (sp *victimSet) bound() bound { return bound{top: sp.top, victims: len(sp.victims)} }

// free reports that victims lose no work, and that a target cannot do with fewer or
// with those of another queue.
func (e *eviction) free(sp *victimSet, l target) bool {
	return e.order == nil && sp.lost == 0 && l.bound.compare(sp.bound()) >= 0
}

func (sp *victimSet) add(u *cluster.Usage, e *eviction) {
	if len(sp.victims) == 0 || u.Priority > sp.top {
		sp.top = u.Priority
	}
	if len(sp.victims) == 0 || e.compareQueues(u.Queue, sp.first) < 0 {
		sp.first = u.Queue
	}
	sp.lost += u.LostMilliSeconds(e.now)
	sp.victims = append(sp.victims, u)
}

// search finds victims on a pool that make room for the shape. One victim that
// is enough is found by trying each. Where it takes several, all candidates are
// taken, then given back as long as the task fits, in several orders of which
// the best outcome counts (see [eviction.fillBack]); where there might be fewer, sets of
// them are tried ([eviction.fewest]).
func (e *eviction) search(b *cluster.Pool) (*victimSet, bool) {
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
	if len(best.victims) <= 2 {
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
func (e *eviction) queuesOf(work []*cluster.Usage) []string {
	var queues []string
	for _, u := range work {
		if !slices.Contains(queues, u.Queue) {
			queues = append(queues, u.Queue)
		}
	}
	slices.SortFunc(queues, func(a, b string) int { return cmp.Or(e.compareQueues(a, b), strings.Compare(a, b)) })
	return queues
}

func (e *eviction) consider(best **victimSet, other *victimSet) {
	if other != nil && e.compareVictims(other, *best) < 0 {
		*best = other
	}
}

// alone is the cheapest single victim that is enough; nil when none is.
func (e *eviction) alone(room *trial, candidates []*cluster.Usage) *victimSet {
	var best *victimSet
	for _, u := range candidates {
		if best != nil && cmp.Or(cmp.Compare(u.Priority, best.top), e.compareQueues(best.first, u.Queue), cmp.Compare(u.LostMilliSeconds(e.now), best.lost)) >= 0 {
			continue
		}
		room.add(u, 1)
		if room.fits() {
			best = &victimSet{pool: room.pool}
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
func (e *eviction) fillBack(room *trial, candidates []*cluster.Usage, rank func(*cluster.Usage) int64) *victimSet {
	slices.SortFunc(candidates, func(x, y *cluster.Usage) int {
		return cmp.Or(
			cmp.Compare(y.Priority, x.Priority), cmp.Compare(rank(x), rank(y)),
			cmp.Compare(y.LostMilliSeconds(e.now), x.LostMilliSeconds(e.now)), cmp.Compare(x.ID, y.ID),
		)
	})
	sp := &victimSet{pool: room.pool}
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

// candidates lists what may be evicted from a pool's node.
func (e *eviction) candidates(b *cluster.Pool) []*cluster.Usage {
	e.rank()
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
