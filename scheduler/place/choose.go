package place

import (
	"cmp"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
)

// choice is which GPUs of a pool a task would get and what that does.
type choice struct {
	gpus  []int // in ascending order; valid until the next choose
	waste int32 // waste added, milli
	idle  int32 // idle GPUs afterwards
}

// choose picks the GPUs of a pool that add the least waste by an estimate; ties
// go to the lowest index. The pool must fit the shape.
func (p *Planner) choose(sh *shape, b *gpuPool, ws *wasteEstimator) choice {
	now := p.wasteNow(b, ws)
	cpu := b.node.cpu - sh.req.CPUMHz
	switch sh.req.GPUs {
	case 0:
		return choice{waste: p.idle(b, cpu, nil, nil, ws) - now, idle: b.idle}
	case 1:
		return p.chooseOne(sh, b, ws, cpu, now)
	}
	return p.chooseMany(sh, b, ws, cpu, now)
}

// chooseOne compares the GPUs that differ in what they have free.
func (p *Planner) chooseOne(sh *shape, b *gpuPool, ws *wasteEstimator, cpu int64, now int32) choice {
	nd := sh.need(p.snap, b.kind)
	best, at := int32(0), -1
	for i := range b.gpus {
		c := &b.gpus[i]
		if !nd.fits(c) || !sh.suits(b, i) || sh.meets == nil && sh.req.Beside == BesideAny && seenAlike(b.gpus[:i], c, nd, ws.Paired()) {
			continue
		}
		if rank := sh.policy.prefer(p, b, i, nd, cpu, ws) + p.heatPrice(c, nd.share); at < 0 || rank < best {
			best, at = rank, i
		}
	}
	p.gpus = append(p.gpus[:0], at)
	ch := choice{gpus: p.gpus, idle: b.idle, waste: p.idle(b, cpu, p.gpus, nd, ws) - now + p.heatPrice(&b.gpus[at], nd.share)}
	if b.gpus[at].share == gpuMilli {
		ch.idle--
	}
	return ch
}

// seenAlike reports whether one of the GPUs is as free and as hot, and holds the need.
func seenAlike(gpus []gpuState, as *gpuState, nd *need, paired bool) bool {
	for i := range gpus {
		same := gpus[i].share == as.share && (!paired || gpus[i].milli == as.milli && gpus[i].slices == as.slices)
		if same && gpus[i].hot == as.hot && nd.fits(&gpus[i]) {
			return true
		}
	}
	return false
}

// heatPrice is what it costs to put a task on a GPU that is measured too hot for it,
// in milli.
func (p *Planner) heatPrice(c *gpuState, share int32) int32 {
	return int32(p.weights.MeasuredMilli * c.heat(share) / 1000)
}

// idle is the expected waste of a pool if its node had so much CPU free and
// some of its GPUs had less by what a task needs.
func (p *Planner) idle(b *gpuPool, cpu int64, gpus []int, nd *need, ws *wasteEstimator) int32 {
	if ws.Paired() {
		return p.idleParts(b, cpu, gpus, nd, ws)
	}
	take := int32(0)
	if nd != nil {
		take = nd.share
	}
	key := ws.Key(b.kind, cpu).Plus(b.shares)
	for _, i := range gpus {
		key = key.Swap(b.gpus[i].share, max(0, b.gpus[i].share-take))
	}
	idle, ok := ws.Known(key)
	if !ok {
		idle = ws.Estimate(key, b.kind, cpu, p.sorted(b, gpus, take))
	}
	return idle
}

// idleParts is idle where compute and memory are told apart.
func (p *Planner) idleParts(b *gpuPool, cpu int64, gpus []int, nd *need, ws *wasteEstimator) int32 {
	k := &p.snap.kinds[b.kind]
	key := ws.Key(b.kind, cpu)
	p.parts = p.parts[:0]
	for i := range b.gpus {
		c := b.gpus[i]
		if !c.open {
			continue
		}
		if slices.Contains(gpus, i) {
			c.milli -= int32(nd.take.Milli)
			c.slices -= int32(nd.take.Slices)
			c.replicas -= int32(nd.take.Replicas)
			c.tasks++
		}
		part := c.part(k)
		key = key.Plus(forecast.KeyOfShare(int32(part)))
		p.parts = append(p.parts, part)
	}
	if idle, ok := ws.Known(key); ok {
		return idle
	}
	return ws.EstimateParts(key, b.kind, cpu, p.parts)
}

// sorted returns the shares of a pool in ascending order, some less by take.
func (p *Planner) sorted(b *gpuPool, gpus []int, take int32) []int32 {
	p.shares = p.shares[:0]
	for i := range b.gpus {
		v := b.gpus[i].share
		if slices.Contains(gpus, i) {
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
func (p *Planner) chooseMany(sh *shape, b *gpuPool, ws *wasteEstimator, cpu int64, now int32) choice {
	nd := sh.need(p.snap, b.kind)
	p.gpus = p.gpus[:0]
	for i := range b.gpus {
		if nd.fits(&b.gpus[i]) && sh.suits(b, i) {
			p.gpus = append(p.gpus, i)
		}
	}
	if p.weights.MeasuredMilli > 0 {
		slices.SortStableFunc(p.gpus, func(x, y int) int { return cmp.Compare(b.gpus[x].heat(nd.share), b.gpus[y].heat(nd.share)) })
	}
	if nd.whole {
		p.gpus = b.nearest(p.gpus, sh.req.GPUs)
	} else {
		sign := int32(sh.policy.sign())
		slices.SortStableFunc(p.gpus, func(x, y int) int { return cmp.Compare(sign*b.gpus[x].share, sign*b.gpus[y].share) })
		p.gpus = p.gpus[:sh.req.GPUs]
	}
	slices.Sort(p.gpus)
	ch := choice{gpus: p.gpus, idle: b.idle}
	for _, i := range p.gpus {
		if b.gpus[i].share == gpuMilli {
			ch.idle--
		}
	}
	ch.waste = p.idle(b, cpu, p.gpus, nd, ws) - now
	for _, i := range p.gpus {
		ch.waste += p.heatPrice(&b.gpus[i], nd.share)
	}
	if sh.req.Close {
		ch.waste += int32(p.weights.DistancePriceMilli * b.apart(p.gpus) / 1000)
	}
	return ch
}

// wasteNow is the expected waste of a pool as it is, remembered for its class
// until the demand changes.
func (p *Planner) wasteNow(b *gpuPool, ws *wasteEstimator) int32 {
	for int(b.class) >= len(ws.current) {
		ws.current = append(ws.current, classWaste{born: -1})
	}
	c := &ws.current[b.class]
	if born := p.snap.states.classes[b.class].born; c.born != born {
		*c = classWaste{born, p.idle(b, b.node.cpu, nil, nil, ws)}
	}
	return c.waste
}

// wasteEstimator is expected waste by one precision.
type wasteEstimator struct {
	*forecast.Waste
	current []classWaste // of pools as they are, by class ID
}

// classWaste is the expected waste of the pools of a class of this birth.
type classWaste struct {
	born  int64
	waste int32
}

func newWasteEstimator(p forecast.Precision) *wasteEstimator {
	return &wasteEstimator{Waste: forecast.NewWaste(p)}
}

// learn forgets what was estimated and learns the demand.
func (e *wasteEstimator) learn(s *forecast.Supply, d *forecast.Demand) {
	e.current = e.current[:0]
	e.Learn(s, d)
}
