package place

import (
	"cmp"
	"slices"
)

// choice is which GPUs of a bank a task would get and what that does.
type choice struct {
	cells []int // in ascending order; valid until the next choose
	waste int32 // waste added, milli
	idle  int32 // idle GPUs afterwards
}

// choose picks the GPUs of a bank that add the least waste by an estimate; ties
// go to the lowest index. The bank must fit the shape.
func (p *Planner) choose(sh *shape, b *bank, ws *waste) choice {
	now := p.wasteNow(b, ws)
	cpu := b.node.cpu - sh.req.CPUMHz
	switch sh.req.GPUs {
	case 0:
		return choice{waste: p.idle(b, cpu, nil, 0, ws) - now, idle: b.idle}
	case 1:
		return p.chooseOne(sh, b, ws, cpu, now)
	}
	return p.chooseMany(sh, b, ws, cpu, now)
}

// chooseOne compares the GPUs that differ in what they have free: BALANCED
// takes the one that adds the least waste, PACK the fullest, SPREAD the
// emptiest.
func (p *Planner) chooseOne(sh *shape, b *bank, ws *waste, cpu int64, now int32) choice {
	nd := sh.need(p.snap, b.kind)
	best, at := int32(0), -1
	for i := range b.cells {
		c := &b.cells[i]
		if !c.holds(nd) || !sh.suits(b, i) || sh.meets == nil && seenShare(b.cells[:i], c.share, nd) {
			continue
		}
		rank := c.share
		switch sh.req.Policy {
		case PolicySpread:
			rank = -c.share
		case PolicyBalanced:
			rank = p.idle(b, cpu, append(p.cells[:0], i), nd.share, ws)
		}
		if at < 0 || rank < best {
			best, at = rank, i
		}
	}
	p.cells = append(p.cells[:0], at)
	ch := choice{cells: p.cells, idle: b.idle, waste: best - now}
	if sh.req.Policy != PolicyBalanced {
		ch.waste = p.idle(b, cpu, p.cells, nd.share, ws) - now
	}
	if b.cells[at].share == gpuMilli {
		ch.idle--
	}
	return ch
}

// seenShare reports whether one of the cells is as free and holds the need.
func seenShare(cells []cell, share int32, nd *need) bool {
	for i := range cells {
		if cells[i].share == share && cells[i].holds(nd) {
			return true
		}
	}
	return false
}

// idle is the expected waste of a bank if its node had so much CPU free and
// some of its GPUs had less by take.
func (p *Planner) idle(b *bank, cpu int64, cells []int, take int32, ws *waste) int32 {
	key := ws.key(b.kind, cpu).plus(b.shares)
	for _, i := range cells {
		key = key.swap(b.cells[i].share, max(0, b.cells[i].share-take))
	}
	idle, ok := ws.known.get(key)
	if !ok {
		idle = ws.estimate(key, b.kind, cpu, p.sorted(b, cells, take))
	}
	return idle
}

// sorted returns the shares of a bank in ascending order, some less by take.
func (p *Planner) sorted(b *bank, cells []int, take int32) []int32 {
	p.shares = p.shares[:0]
	for i := range b.cells {
		v := b.cells[i].share
		if slices.Contains(cells, i) {
			v = max(0, v-take)
		}
		p.shares = insertSorted(p.shares, v)
	}
	return p.shares
}

func insertSorted(list []int32, v int32) []int32 {
	i := len(list)
	list = append(list, v)
	for ; i > 0 && list[i-1] > v; i-- {
		list[i] = list[i-1]
	}
	list[i] = v
	return list
}

// chooseMany takes the tightest GPUs that fit, and of equal ones those that
// are closest to each other.
func (p *Planner) chooseMany(sh *shape, b *bank, ws *waste, cpu int64, now int32) choice {
	nd := sh.need(p.snap, b.kind)
	p.cells = p.cells[:0]
	for i := range b.cells {
		if b.cells[i].holds(nd) && sh.suits(b, i) {
			p.cells = append(p.cells, i)
		}
	}
	if nd.whole {
		p.cells = b.nearest(p.cells, sh.req.GPUs)
	} else {
		sign := int32(1)
		if sh.req.Policy == PolicySpread {
			sign = -1
		}
		slices.SortStableFunc(p.cells, func(x, y int) int { return cmp.Compare(sign*b.cells[x].share, sign*b.cells[y].share) })
		p.cells = p.cells[:sh.req.GPUs]
	}
	slices.Sort(p.cells)
	ch := choice{cells: p.cells, idle: b.idle}
	for _, i := range p.cells {
		if b.cells[i].share == gpuMilli {
			ch.idle--
		}
	}
	ch.waste = p.idle(b, cpu, p.cells, nd.share, ws) - now
	if sh.req.Close {
		ch.waste += int32(p.weights.DistancePriceMilli * b.apart(p.cells) / 1000)
	}
	return ch
}

// wasteNow is the expected waste of a bank as it is, remembered for its class
// until the demand changes.
func (p *Planner) wasteNow(b *bank, ws *waste) int32 {
	for int(b.class) >= len(ws.current) {
		ws.current = append(ws.current, classWaste{born: -1})
	}
	c := &ws.current[b.class]
	if born := p.snap.states.sets[b.class].born; c.born != born {
		*c = classWaste{born, p.idle(b, b.node.cpu, nil, 0, ws)}
	}
	return c.waste
}

// classWaste is the expected waste of the banks of a class of this birth.
type classWaste struct {
	born  int64
	waste int32
}
