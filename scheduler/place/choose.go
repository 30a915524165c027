package place

import (
	"cmp"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// choice is which GPUs of a pool a task would get and what that does.
type choice struct {
	gpus  []int // in ascending order; valid until the next choose
	waste int32 // waste added, milli
	idle  int32 // idle GPUs afterwards
}

// choose picks the GPUs of a pool that add the least waste by an estimate; ties
// go to the lowest index. The pool must fit the shape.
func (p *Planner) choose(sh *shape, b *cluster.Pool, ws *wasteEstimator) choice {
	now := p.wasteNow(b, ws)
	cpu := b.Node.CPU - sh.Req.CPUMHz
	switch sh.Req.GPUs {
	case 0:
		return choice{waste: p.idle(b, cpu, nil, nil, ws) - now, idle: b.Idle}
	case 1:
		return p.chooseOne(sh, b, ws, cpu, now)
	}
	return p.chooseMany(sh, b, ws, cpu, now)
}

// chooseOne compares the GPUs that differ in what they have free.
func (p *Planner) chooseOne(sh *shape, b *cluster.Pool, ws *wasteEstimator, cpu int64, now int32) choice {
	nd := sh.Need(p.snap, b.Kind)
	best, at := int32(0), -1
	for i := range b.GPUs {
		c := &b.GPUs[i]
		if !nd.Fits(c) || !sh.Suits(b, i) || sh.Meets == nil && sh.Req.Beside == BesideAny && seenAlike(b.GPUs[:i], c, nd, ws.Paired()) {
			continue
		}
		if rank := sh.policy.prefer(p, b, i, nd, cpu, ws) + p.heatPrice(c, nd.Share); at < 0 || rank < best {
			best, at = rank, i
		}
	}
	p.gpus = append(p.gpus[:0], at)
	ch := choice{gpus: p.gpus, idle: b.Idle, waste: p.idle(b, cpu, p.gpus, nd, ws) - now + p.heatPrice(&b.GPUs[at], nd.Share)}
	if b.GPUs[at].Share == cluster.GPUMilli {
		ch.idle--
	}
	return ch
}

// seenAlike reports whether one of the GPUs is as free and as hot, and holds the need.
func seenAlike(gpus []cluster.GPUState, as *cluster.GPUState, nd *fit.Need, paired bool) bool {
	for i := range gpus {
		same := gpus[i].Share == as.Share && (!paired || gpus[i].Milli == as.Milli && gpus[i].Slices == as.Slices)
		if same && gpus[i].Hot == as.Hot && nd.Fits(&gpus[i]) {
			return true
		}
	}
	return false
}

// heatPrice is what it costs to put a task on a GPU that is measured too hot for it,
// in milli.
func (p *Planner) heatPrice(c *cluster.GPUState, share int32) int32 {
	return int32(p.weights.MeasuredMilli * c.Heat(share) / 1000)
}

// idle is the expected waste of a pool if its node had so much CPU free and
// some of its GPUs had less by what a task needs.
func (p *Planner) idle(b *cluster.Pool, cpu int64, gpus []int, nd *fit.Need, ws *wasteEstimator) int32 {
	if ws.Paired() {
		return p.idleParts(b, cpu, gpus, nd, ws)
	}
	take := int32(0)
	if nd != nil {
		take = nd.Share
	}
	key := ws.Key(b.Kind, cpu).Plus(b.Shares)
	for _, i := range gpus {
		key = key.Swap(b.GPUs[i].Share, max(0, b.GPUs[i].Share-take))
	}
	idle, ok := ws.Known(key)
	if !ok {
		idle = ws.Estimate(key, b.Kind, cpu, p.sorted(b, gpus, take))
	}
	return idle
}

// idleParts is idle where compute and memory are told apart.
func (p *Planner) idleParts(b *cluster.Pool, cpu int64, gpus []int, nd *fit.Need, ws *wasteEstimator) int32 {
	k := &p.snap.Kinds[b.Kind]
	key := ws.Key(b.Kind, cpu)
	p.parts = p.parts[:0]
	for i := range b.GPUs {
		c := b.GPUs[i]
		if !c.Open {
			continue
		}
		if slices.Contains(gpus, i) {
			c.Milli -= int32(nd.Take.Milli)
			c.Slices -= int32(nd.Take.Slices)
			c.Replicas -= int32(nd.Take.Replicas)
			c.Tasks++
		}
		part := c.Part(k)
		key = key.Plus(forecast.KeyOfShare(int32(part)))
		p.parts = append(p.parts, part)
	}
	if idle, ok := ws.Known(key); ok {
		return idle
	}
	return ws.EstimateParts(key, b.Kind, cpu, p.parts)
}

// sorted returns the shares of a pool in ascending order, some less by take.
func (p *Planner) sorted(b *cluster.Pool, gpus []int, take int32) []int32 {
	p.shares = p.shares[:0]
	for i := range b.GPUs {
		v := b.GPUs[i].Share
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
func (p *Planner) chooseMany(sh *shape, b *cluster.Pool, ws *wasteEstimator, cpu int64, now int32) choice {
	nd := sh.Need(p.snap, b.Kind)
	p.gpus = p.gpus[:0]
	for i := range b.GPUs {
		if nd.Fits(&b.GPUs[i]) && sh.Suits(b, i) {
			p.gpus = append(p.gpus, i)
		}
	}
	if p.weights.MeasuredMilli > 0 {
		slices.SortStableFunc(p.gpus, func(x, y int) int { return cmp.Compare(b.GPUs[x].Heat(nd.Share), b.GPUs[y].Heat(nd.Share)) })
	}
	if nd.Whole {
		p.gpus = b.Nearest(p.gpus, sh.Req.GPUs)
	} else {
		sign := int32(sh.policy.sign())
		slices.SortStableFunc(p.gpus, func(x, y int) int { return cmp.Compare(sign*b.GPUs[x].Share, sign*b.GPUs[y].Share) })
		p.gpus = p.gpus[:sh.Req.GPUs]
	}
	slices.Sort(p.gpus)
	ch := choice{gpus: p.gpus, idle: b.Idle}
	for _, i := range p.gpus {
		if b.GPUs[i].Share == cluster.GPUMilli {
			ch.idle--
		}
	}
	ch.waste = p.idle(b, cpu, p.gpus, nd, ws) - now
	for _, i := range p.gpus {
		ch.waste += p.heatPrice(&b.GPUs[i], nd.Share)
	}
	if sh.Req.Close {
		ch.waste += int32(p.weights.DistancePriceMilli * b.Apart(p.gpus) / 1000)
	}
	return ch
}

// wasteNow is the expected waste of a pool as it is, remembered for its class
// until the demand changes.
func (p *Planner) wasteNow(b *cluster.Pool, ws *wasteEstimator) int32 {
	for int(b.Class) >= len(ws.current) {
		ws.current = append(ws.current, classWaste{born: -1})
	}
	c := &ws.current[b.Class]
	if born := p.snap.States.List[b.Class].Born; c.born != born {
		*c = classWaste{born, p.idle(b, b.Node.CPU, nil, nil, ws)}
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
