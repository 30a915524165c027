package place

import (
	"cmp"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// Task is a shape of requests and the policy by which it is placed.
type Task struct {
	*fit.Shape
	policy policy
}

// NewTask places a shape by a policy.
func NewTask(sh *fit.Shape, by fit.Policy) *Task { return &Task{sh, policies[by]} }

// choice is which GPUs of a pool a task would get and what that does.
type choice struct {
	gpus  []int // in ascending order; valid until the next choose
	waste int32 // waste added, milli
	idle  int32 // idle GPUs afterwards
}

// choose picks the GPUs of a pool that add the least waste by an estimate; ties
// go to the lowest index. The pool must fit the shape.
func (p *Scorer) choose(sh *Task, b *cluster.Pool, ws *wasteEstimator) choice {
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
func (p *Scorer) chooseOne(sh *Task, b *cluster.Pool, ws *wasteEstimator, cpu int64, now int32) choice {
	nd := sh.Need(p.snap, b.Kind)
	best, at := int32(0), -1
	for i := range b.GPUs {
		c := &b.GPUs[i]
		if !nd.Fits(c) || !sh.Suits(b, i) || sh.Meets == nil && sh.Req.Beside == fit.BesideAny && seenAlike(b.GPUs[:i], c, nd, ws.Paired()) {
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

// chooseMany takes the tightest GPUs that fit, and of equal ones those that
// are closest to each other.
func (p *Scorer) chooseMany(sh *Task, b *cluster.Pool, ws *wasteEstimator, cpu int64, now int32) choice {
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

var policies = [...]policy{fit.PolicyBalanced: balanced{}, fit.PolicyPack: filling{1}, fit.PolicySpread: filling{-1}}
