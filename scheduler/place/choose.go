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
		return choice{waste: ws.idle(b.kind, cpu, p.sorted(b)) - now, idle: b.idle}
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
	sorted := p.sorted(b)
	for i := range b.cells {
		c := &b.cells[i]
		if !c.holds(nd) || seenShare(b.cells[:i], c.share, nd) {
			continue
		}
		rank := c.share
		switch sh.req.Policy {
		case PolicySpread:
			rank = -c.share
		case PolicyBalanced:
			rank = ws.idle(b.kind, cpu, p.less(sorted, c.share, nd.share))
		}
		if at < 0 || rank < best {
			best, at = rank, i
		}
	}
	share := b.cells[at].share
	p.cells = append(p.cells[:0], at)
	ch := choice{cells: p.cells, idle: b.idle, waste: best - now}
	if sh.req.Policy != PolicyBalanced {
		ch.waste = ws.idle(b.kind, cpu, p.less(sorted, share, nd.share)) - now
	}
	if share == gpuMilli {
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

// sorted returns the shares of a bank in ascending order.
func (p *Planner) sorted(b *bank) []int32 {
	p.shares = p.shares[:0]
	for i := range b.cells {
		p.shares = insertSorted(p.shares, b.cells[i].share)
	}
	return p.shares
}

// less returns sorted shares with one of them, of value from, smaller by take.
func (p *Planner) less(sorted []int32, from, take int32) []int32 {
	out := p.after[:0]
	to, placed, removed := max(0, from-take), false, false
	for _, v := range sorted {
		if !placed && v >= to {
			out = append(out, to)
			placed = true
		}
		if !removed && v == from {
			removed = true
			continue
		}
		out = append(out, v)
	}
	p.after = out
	return out
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
		if b.cells[i].holds(nd) {
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
	after := p.after[:0]
	for i, at := 0, 0; i < len(b.cells); i++ {
		v := b.cells[i].share
		if at < len(p.cells) && p.cells[at] == i {
			if v == gpuMilli {
				ch.idle--
			}
			v = max(0, v-nd.share)
			at++
		}
		after = insertSorted(after, v)
	}
	p.after = after
	ch.waste = ws.idle(b.kind, cpu, after) - now
	if sh.req.Close {
		ch.waste += int32(p.weights.DistancePriceMilli * b.apart(p.cells) / 1000)
	}
	return ch
}

// wasteNow is the expected waste of a bank as it is, remembered until the bank
// or the demand changes.
func (p *Planner) wasteNow(b *bank, ws *waste) int32 {
	for int(b.id) >= len(ws.current) {
		ws.current = append(ws.current, bankWaste{stamp: -1})
	}
	c := &ws.current[b.id]
	if c.stamp != b.stamp {
		*c = bankWaste{b.stamp, ws.idle(b.kind, b.node.cpu, p.sorted(b))}
	}
	return c.waste
}

// bankWaste is the expected waste of a bank at a position of the change log.
type bankWaste struct {
	stamp int64
	waste int32
}
