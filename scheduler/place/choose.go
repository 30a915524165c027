package place

import "slices"

// choice is which GPUs of a bank a task would get and what that does.
type choice struct {
	cells [maxGPUs]bool
	waste int32 // waste added, milli
	idle  int32 // idle GPUs afterwards
}

// choose picks the GPUs of a bank that add the least waste; ties go to the
// lowest index. The bank must fit the shape.
func (p *Planner) choose(sh *shape, b *bank) choice {
	now := p.wasteOf(b, b.node.cpu, nil, 0)
	cpu := b.node.cpu - sh.req.CPUMHz
	if sh.req.GPUs == 0 {
		return choice{waste: p.wasteOf(b, cpu, nil, 0) - now, idle: b.idle}
	}
	nd := sh.need(p.snap, b.kind)
	var best choice
	found := false
	for _, c := range candidates(sh, b, nd) {
		c.waste = p.wasteOf(b, cpu, &c.cells, nd.share) - now
		if !found || c.waste < best.waste {
			best, found = c, true
		}
	}
	best.idle = b.idle
	for i := range b.cells {
		if best.cells[i] && b.cells[i].share == gpuMilli {
			best.idle--
		}
	}
	return best
}

// candidates lists the sets of GPUs worth comparing: every GPU that differs
// for a task of one, the tightest that fit for a task of several.
func candidates(sh *shape, b *bank, nd *need) []choice {
	var list []choice
	if sh.req.GPUs == 1 {
		for i := range b.cells {
			if b.cells[i].holds(nd) && !slices.Contains(b.cells[:i], b.cells[i]) {
				var c choice
				c.cells[i] = true
				list = append(list, c)
			}
		}
		return list
	}
	var c choice
	order := make([]int, 0, len(b.cells))
	for i := range b.cells {
		if b.cells[i].holds(nd) {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(x, y int) int { return int(b.cells[x].share - b.cells[y].share) })
	for _, i := range order[:sh.req.GPUs] {
		c.cells[i] = true
	}
	return append(list, c)
}

// wasteOf is the expected waste of a bank with so much CPU free and, where
// cells are given, share less on each of them.
func (p *Planner) wasteOf(b *bank, cpu int64, cells *[maxGPUs]bool, share int32) int32 {
	var buf [maxGPUs]int32
	shares := buf[:0]
	for i := range b.cells {
		v := b.cells[i].share
		if cells != nil && cells[i] {
			v = max(0, v-share)
		}
		shares = append(shares, v)
	}
	slices.Sort(shares)
	return p.waste.idle(b.kind, cpu, shares)
}
