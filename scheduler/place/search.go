package place

import (
	"cmp"
	"slices"
)

// spoils is a set of victims on one bank, with what they cost.
type spoils struct {
	bank    *bank
	victims []*Usage
	top     int   // highest priority among them
	lost    int64 // work lost, milli-seconds
}

// compareSpoils orders by lowest priority, fewest victims, least work lost,
// then by the place of the bank.
func compareSpoils(a, b *spoils) int {
	return cmp.Or(a.bound().compare(b.bound()), cmp.Compare(a.lost, b.lost), cmp.Compare(a.bank.id, b.bank.id))
}

func (sp *spoils) bound() bound { return bound{top: sp.top, victims: len(sp.victims)} }

// free reports that victims lose no work and that a lead cannot do with fewer.
func (sp *spoils) free(l lead) bool { return sp.lost == 0 && l.bound.compare(sp.bound()) >= 0 }

func (sp *spoils) add(u *Usage, e *eviction) {
	if len(sp.victims) == 0 || u.Priority > sp.top {
		sp.top = u.Priority
	}
	sp.lost += u.lostMilliSeconds(e.now)
	sp.victims = append(sp.victims, u)
}

// search finds victims on a bank that make room for the shape. One victim that
// is enough is found by trying each. Where it takes several, all candidates are
// taken, then given back as long as the task fits, in several orders of which
// the best outcome counts (see [eviction.sift]); where there might be fewer, sets of
// them are tried ([eviction.fewest]).
func (e *eviction) search(sh *shape, b *bank) (*spoils, bool) {
	room, candidates := e.room(sh, b), e.candidates(b)
	one := e.alone(room, candidates)
	if one != nil && one.top == lowest(candidates) {
		return one, true
	}
	if !room.empty(candidates) {
		return nil, false
	}
	best := e.sift(room, candidates, room.value)
	e.consider(&best, one)
	e.consider(&best, e.sift(room, candidates, func(u *Usage) int64 { return -u.lostMilliSeconds(e.now) }))
	if len(best.victims) <= 2 {
		return best, true // fewer would be one, and be known
	}
	for cells := range combinations(len(b.cells), sh.req.GPUs) {
		e.consider(&best, e.sift(room, candidates, func(u *Usage) int64 {
			if room.touches(u, cells) {
				return room.value(u) + 1<<40
			}
			return room.value(u)
		}))
	}
	return e.fewest(sh, b, candidates, best), true
}

func (e *eviction) consider(best **spoils, other *spoils) {
	if other != nil && compareSpoils(other, *best) < 0 {
		*best = other
	}
}

// alone is the cheapest single victim that is enough; nil when none is.
func (e *eviction) alone(room *room, candidates []*Usage) *spoils {
	var best *spoils
	for _, u := range candidates {
		if best != nil && cmp.Or(cmp.Compare(u.Priority, best.top), cmp.Compare(u.lostMilliSeconds(e.now), best.lost)) >= 0 {
			continue
		}
		room.add(u, 1)
		if room.fits() {
			best = &spoils{bank: room.bank}
			best.add(u, e)
		}
		room.add(u, -1)
	}
	return best
}

func lowest(candidates []*Usage) int {
	return slices.MinFunc(candidates, func(a, b *Usage) int { return cmp.Compare(a.Priority, b.Priority) }).Priority
}

// sift gives candidates back as long as the shape fits: the highest priority
// first, and of one priority the lowest rank first. It returns those that must
// go, and leaves the room as it was. By size as rank, few large ones remain; by
// work lost, cheap ones; with those on certain GPUs last, those GPUs are freed.
func (e *eviction) sift(room *room, candidates []*Usage, rank func(*Usage) int64) *spoils {
	slices.SortFunc(candidates, func(x, y *Usage) int {
		return cmp.Or(
			cmp.Compare(y.Priority, x.Priority), cmp.Compare(rank(x), rank(y)),
			cmp.Compare(y.lostMilliSeconds(e.now), x.lostMilliSeconds(e.now)), cmp.Compare(x.ID, y.ID),
		)
	})
	sp := &spoils{bank: room.bank}
	var kept []*Usage
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

// candidates lists what may be evicted from a bank's node.
func (e *eviction) candidates(b *bank) []*Usage {
	e.rank()
	var out []*Usage
	for _, u := range b.node.holders {
		if e.allowed(u) {
			out = append(out, u)
		}
	}
	return out
}

// mostCombinations bounds how many sets of GPUs are tried: any number of eight.
const mostCombinations = 70

// combinations yields the sets of k out of n cells as bit masks, in ascending
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
