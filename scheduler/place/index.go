package place

import (
	"cmp"
	"slices"
)

// index remembers, for one shape, the verdict and points of every set of banks
// in a feed, and finds the best bank without looking at all of them. It follows
// the snapshot through the feed's log: a set is judged when its state is new.
//
// Points are kept in blocks of blockSize with the best of each block, in as
// many levels as it takes, so that finding the best costs the logarithm of the
// number of sets, and a look at those that tie with it.
type index struct {
	feed     *feed
	at       int64 // position in the log
	epoch    int   // prices that the points were computed with
	lessons  int   // demand that the verdicts were computed with
	look     int   // number of looks of the planner when it was last asked
	verdicts []verdict
	places   []placeCounts // what a placement would break, where tasks end
	levels   [][]int32     // levels[0]: points per set; the last has one entry
}

const blockSize = 16

// feed is what a shape's index follows.
func (s *Snapshot) feed(sh *shape) *feed {
	if sh.apart {
		return &s.each
	}
	return &s.states.feed
}

// sync brings the index up to date.
func (p *Planner) sync(ix *index, sh *shape) {
	ix.grow(len(ix.feed.sets))
	if ids, ok := p.behind(ix); ok {
		p.follow(ix, sh, ids)
	} else {
		p.rebuild(ix, sh)
	}
	ix.at, ix.epoch, ix.lessons, ix.look = ix.feed.log.end(), p.epoch, p.lessons, p.looks
}

// behind returns the changes that an index has not followed; ok is false when it
// is better to look at every set.
func (p *Planner) behind(ix *index) (ids []int32, ok bool) {
	ids, ok = ix.feed.log.since(ix.at)
	return ids, ok && ix.lessons == p.lessons && len(ids) <= len(ix.feed.sets)
}

// rebuild looks at all sets, but judges only what is new.
func (p *Planner) rebuild(ix *index, sh *shape) {
	if ix.lessons != p.lessons {
		clear(ix.verdicts)
		ix.places = nil
		ix.at = 0
	}
	for id := range ix.feed.sets {
		if ix.feed.sets[id].stamp >= ix.at {
			ix.levels[0][id] = p.rate(ix, sh, id)
		}
	}
	p.reprice(ix, sh)
}

// follow looks at the sets that changed, each once, and reprices when prices
// are new.
func (p *Planner) follow(ix *index, sh *shape, ids []int32) {
	stale := ix.epoch != p.epoch
	all := stale || len(ids)*blockSize > len(ix.feed.sets)
	for i, id := range ids {
		if ix.feed.sets[id].stamp != ix.at+int64(i) {
			continue // changed again later
		}
		pts := p.rate(ix, sh, int(id))
		if all {
			ix.levels[0][id] = pts
		} else {
			ix.set(int(id), pts)
		}
	}
	if stale {
		p.reprice(ix, sh)
	} else if all {
		ix.fillLevels()
	}
}

// rate returns the points of a set, and judges its first bank when the state is
// new to the index.
func (p *Planner) rate(ix *index, sh *shape, id int) int32 {
	set, v := &ix.feed.sets[id], &ix.verdicts[id]
	if set.born >= ix.at {
		v.known = unseen
	}
	if len(set.banks) == 0 {
		return worst
	}
	if v.known == unseen {
		v.known = unfit
		if !set.lacks(sh, p.snap) {
			if b := p.bankOf(ix, id); p.snap.fit(sh, b) == fitsNow {
				*v = p.glance(sh, b)
				p.setPlaces(ix, sh, b, id)
			}
		}
	}
	if v.known == unfit {
		return worst
	}
	return p.points(v, ix.broken(id), sh)
}

// setPlaces notes what a placement would break.
func (p *Planner) setPlaces(ix *index, sh *shape, b *bank, id int) {
	if !p.turnover.lives {
		return
	}
	if len(ix.places) < len(ix.verdicts) {
		ix.places = append(ix.places, make([]placeCounts, len(ix.verdicts)-len(ix.places))...)
	}
	ix.places[id] = p.breaks(sh, b, int32(ix.verdicts[id].hunch))
}

// broken is what a placement on a set would break; nil where nothing is known.
func (ix *index) broken(id int) *placeCounts {
	if id < len(ix.places) {
		return &ix.places[id]
	}
	return nil
}

// bankOf is the bank that stands for a set: the first.
func (p *Planner) bankOf(ix *index, id int) *bank { return p.snap.banks[ix.feed.first[id]] }

// pick returns the set with the highest points, of several the one that has the
// first bank. Sets whose points are rough, and so the most that they can be,
// are refined when they come to the top: most never are.
func (p *Planner) pick(ix *index, sh *shape) (id int, ok bool) {
	for {
		p.tied = ix.top(p.tied[:0])
		if len(p.tied) == 0 {
			return 0, false
		}
		id = ix.first(p.tied)
		if ix.verdicts[id].known != rough {
			return id, true
		}
		p.refineTied(ix, sh, p.tied)
	}
}

// refineTied refines the sets with the highest points, in the order of their first
// banks, until one keeps its points. So many may tie that finding them anew for
// each would take too long.
func (p *Planner) refineTied(ix *index, sh *shape, tied []int32) {
	top := ix.levels[0][tied[0]]
	slices.SortFunc(tied, func(a, b int32) int { return cmp.Compare(ix.feed.first[a], ix.feed.first[b]) })
	for _, id := range tied {
		if ix.verdicts[id].known == rough {
			p.refineAt(ix, sh, int(id))
		}
		if ix.levels[0][id] == top {
			return
		}
	}
}

// refineAt makes the verdict on a set fine.
func (p *Planner) refineAt(ix *index, sh *shape, id int) {
	b, v := p.bankOf(ix, id), &ix.verdicts[id]
	p.refine(v, sh, b)
	ix.set(id, p.points(v, ix.broken(id), sh))
}

// reprice recomputes all points from the verdicts at new prices.
func (p *Planner) reprice(ix *index, sh *shape) {
	leaf := ix.levels[0]
	for id := range leaf {
		if leaf[id] != worst {
			leaf[id] = p.points(&ix.verdicts[id], ix.broken(id), sh)
		}
	}
	ix.fillLevels()
}

// grow makes room for n sets, and some more.
func (ix *index) grow(n int) {
	if len(ix.verdicts) >= n && ix.levels != nil {
		return
	}
	n += n/2 + 4*blockSize
	ix.verdicts = append(ix.verdicts, make([]verdict, n-len(ix.verdicts))...)
	var old []int32
	if ix.levels != nil {
		old = ix.levels[0]
	}
	ix.levels = ix.levels[:0]
	for {
		level := make([]int32, n)
		for i := range level {
			level[i] = worst
		}
		ix.levels = append(ix.levels, level)
		if n <= 1 {
			break
		}
		n = (n + blockSize - 1) / blockSize
	}
	copy(ix.levels[0], old)
	ix.fillLevels()
}

func (ix *index) fillLevels() {
	for l := 1; l < len(ix.levels); l++ {
		for i := range ix.levels[l] {
			ix.levels[l][i] = ix.blockBest(l-1, i)
		}
	}
}

func (ix *index) blockBest(level, block int) int32 {
	best := int32(worst)
	lo := block * blockSize
	for _, v := range ix.levels[level][lo:min(lo+blockSize, len(ix.levels[level]))] {
		best = max(best, v)
	}
	return best
}

// set changes the points of one set of banks.
func (ix *index) set(id int, pts int32) {
	was := ix.levels[0][id]
	ix.levels[0][id] = pts
	for l := 1; l < len(ix.levels); l++ {
		id /= blockSize
		top := ix.levels[l][id]
		switch {
		case pts > top:
			ix.levels[l][id] = pts
		case was == top && pts < top:
			pts = ix.blockBest(l-1, id)
			ix.levels[l][id] = pts
		default:
			return
		}
		if was = top; pts == top {
			return
		}
	}
}

// top appends the sets with the highest points that may win, none when nothing
// fits.
func (ix *index) top(ids []int32) []int32 {
	last := len(ix.levels) - 1
	if pts := ix.levels[last][0]; pts != worst {
		ids = ix.tied(ids, last, 0, pts)
	}
	return ids
}

// tied appends the sets below an entry of a level that may win: those with the
// entry's points, or only the first where the feed is ordered, since the first
// bank wins.
func (ix *index) tied(ids []int32, level, at int, pts int32) []int32 {
	if level == 0 {
		return append(ids, int32(at))
	}
	below := ix.levels[level-1]
	for i := at * blockSize; i < min((at+1)*blockSize, len(below)); i++ {
		if below[i] != pts {
			continue
		}
		ids = ix.tied(ids, level-1, i, pts)
		if ix.feed.ordered {
			break // later banks cannot win
		}
	}
	return ids
}

// first is the one of some sets that has the first bank.
func (ix *index) first(ids []int32) int {
	best := ids[0]
	for _, id := range ids[1:] {
		if ix.feed.first[id] < ix.feed.first[best] {
			best = id
		}
	}
	return int(best)
}
