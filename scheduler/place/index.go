package place

// index remembers, for one shape, the verdict and points of every bank, and
// finds the best bank without looking at all of them. It follows the snapshot
// through the change log: a bank is judged again only when it changed.
//
// Points are kept in blocks of blockSize with the best of each block, in as
// many levels as it takes, so that finding the best costs the logarithm of the
// number of banks.
type index struct {
	at       int64 // position in the change log
	epoch    int   // prices that the points were computed with
	lessons  int   // demand that the verdicts were computed with
	verdicts []verdict
	levels   [][]int32 // levels[0]: points per bank; the last has one entry
}

const blockSize = 16

// sync brings the index up to date.
func (p *Planner) sync(ix *index, sh *shape) {
	if ids, ok := p.behind(ix); ok {
		p.follow(ix, sh, ids)
	} else {
		p.rebuild(ix, sh)
	}
	ix.at, ix.epoch, ix.lessons = p.snap.log.end(), p.epoch, p.lessons
}

// behind returns the changes that an index has not followed; ok is false when it
// is to be built anew.
func (p *Planner) behind(ix *index) (ids []int32, ok bool) {
	ids, ok = p.snap.log.since(ix.at)
	return ids, ok && ix.levels != nil && ix.lessons == p.lessons && len(ids) <= len(p.snap.banks)
}

// forgetEvery is how many new shapes come between two looks for indexes that
// nobody uses any more.
const forgetEvery = 64

// forgetIndexes drops what would be built anew, so that shapes which came once
// cost little for ever.
func (p *Planner) forgetIndexes() {
	for _, ix := range p.indexes {
		if _, ok := p.behind(ix); !ok {
			*ix = index{}
		}
	}
}

func (p *Planner) rebuild(ix *index, sh *shape) {
	ix.verdicts, ix.levels = ix.verdicts[:0], nil
	ix.grow(len(p.snap.banks))
	for id := range p.snap.banks {
		ix.levels[0][id] = p.rate(ix, sh, int32(id))
	}
	ix.fillLevels()
}

// follow judges the banks that changed, each once, and reprices when prices
// are new.
func (p *Planner) follow(ix *index, sh *shape, ids []int32) {
	ix.grow(len(p.snap.banks))
	stale := ix.epoch != p.epoch
	all := stale || len(ids)*blockSize > len(p.snap.banks)
	for i, id := range ids {
		if b := p.snap.banks[id]; b != nil && b.stamp != ix.at+int64(i) {
			continue // changed again later
		}
		pts := p.rate(ix, sh, id)
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

// rate looks at a bank anew and returns its points.
func (p *Planner) rate(ix *index, sh *shape, id int32) int32 {
	b := p.snap.banks[id]
	if b == nil || p.snap.fit(sh, b) != fitsNow {
		return worst
	}
	v := &ix.verdicts[id]
	*v = p.glance(sh, b)
	return p.points(v, sh, b)
}

// pick returns the bank with the highest points, the first of several. Banks
// whose points are rough, and so the most that they can be, are refined when
// they come to the top: most never are.
func (p *Planner) pick(ix *index, sh *shape) (id int, ok bool) {
	for {
		id, ok = ix.best()
		if !ok || !ix.verdicts[id].rough {
			return id, ok
		}
		b, v := p.snap.banks[id], &ix.verdicts[id]
		p.refine(v, sh, b)
		ix.set(id, p.points(v, sh, b))
	}
}

// reprice recomputes all points from the verdicts at new prices.
func (p *Planner) reprice(ix *index, sh *shape) {
	leaf := ix.levels[0]
	for id := range leaf {
		if leaf[id] != worst {
			leaf[id] = p.points(&ix.verdicts[id], sh, p.snap.banks[id])
		}
	}
	ix.fillLevels()
}

// grow makes room for n banks.
func (ix *index) grow(n int) {
	if len(ix.verdicts) >= n && ix.levels != nil {
		return
	}
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

// set changes the points of one bank.
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

// best is the first bank with the highest points; ok is false when none fits.
func (ix *index) best() (id int, ok bool) {
	last := len(ix.levels) - 1
	if last < 0 || len(ix.levels[last]) == 0 || ix.levels[last][0] == worst {
		return 0, false
	}
	top := ix.levels[last][0]
	for l := last - 1; l >= 0; l-- {
		id *= blockSize
		for ix.levels[l][id] != top {
			id++
		}
	}
	return id, true
}
