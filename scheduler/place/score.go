package place

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/ranking"
)

// worst is the points of a pool that cannot take the task.
const worst = ranking.Absent

// estimate is what a shape's placement on a pool does, apart from prices.
type estimate struct {
	roughWaste int32     // waste added by the rough estimate less the margin, milli
	waste      int32     // waste added, milli; negative: healed
	kind       int32     // of the pool
	usage      int16     // weighted utilization terms after placement, 0..1000
	left       int16     // of the node after placement, in thousandths of the largest
	stranded   int16     // weighted fragmentation term of PACK and SPREAD
	before     uint8     // idle GPUs of the pool before
	after      uint8     // and after
	roughIdle  uint8     // and after by the rough estimate
	roomBefore uint8     // GPUs of the pool that its CPU before is enough for, under careful prices
	roomAfter  uint8     // and after
	known      precision // so far
}

// precision is how much of an estimate is known.
type precision uint8

const (
	rough precision = iota // waste and after are not known yet
	fine
)

// usageTerms are the utilization terms of a pool after a placement, in
// thousandths.
type usageTerms struct{ gpu, memory, cpu int64 }

func (p *Planner) usageAfter(sh *shape, b *cluster.Pool) usageTerms {
	n := b.Node
	t := usageTerms{
		memory: usedMilli(n.Spec.MemoryMiB, n.Memory-sh.Req.MemoryMiB),
		cpu:    usedMilli(n.Spec.CPUMHz, n.CPU-sh.Req.CPUMHz),
	}
	if len(b.GPUs) > 0 {
		used := blend(b.Used, b.Measured, p.weights.MeasuredMilli)
		if sh.Req.GPUs > 0 {
			nd := sh.Need(p.snap, b.Kind)
			used += (nd.Take.Milli + int64(nd.Share)) / 2 * int64(sh.Req.GPUs)
		}
		t.gpu = min(used/int64(len(b.GPUs)), 1000)
	}
	return t
}

func usedMilli(capacity, free int64) int64 {
	if capacity <= 0 {
		return 0
	}
	return min(max((capacity-free)*1000/capacity, 0), 1000)
}

func blend(allocated, measured, part int64) int64 {
	return ((1000-part)*allocated + part*measured) / 1000
}

// evaluateRoughly works out roughly what placing the shape does on a pool that it fits.
func (p *Planner) evaluateRoughly(v *estimate, sh *shape, b *cluster.Pool) {
	u := p.usageAfter(sh, b)
	*v = estimate{
		kind:   b.Kind,
		usage:  int16((p.weights.GPUMilli*u.gpu + p.weights.MemoryMilli*u.memory + p.weights.CPUMilli*u.cpu) / 1000),
		left:   p.left(sh, b),
		before: uint8(b.Idle), after: uint8(b.Idle), roughIdle: uint8(b.Idle), known: fine,
	}
	if b.Kind < 0 {
		return
	}
	v.roomBefore, v.roomAfter = roomFor(b, b.Node.CPU), roomFor(b, b.Node.CPU-sh.Req.CPUMHz)
	ch := p.choose(sh, b, p.rough)
	v.roughWaste, v.roughIdle = ch.waste, uint8(ch.idle)
	v.waste, v.after = v.roughWaste, v.roughIdle
	sh.policy.complete(p, v, b)
}

// evaluateFinely makes a rough estimate fine.
func (p *Planner) evaluateFinely(v *estimate, sh *shape, b *cluster.Pool) {
	ch := p.choose(sh, b, p.fine)
	v.waste, v.after, v.known = ch.waste, uint8(ch.idle), fine
}

// evaluate is a rough estimate, made fine where the policy wants it.
func (p *Planner) evaluate(sh *shape, b *cluster.Pool) (v estimate) {
	p.evaluateRoughly(&v, sh, b)
	if v.known == rough {
		p.evaluateFinely(&v, sh, b)
	}
	return v
}

// score is the points of a pool that fits a shape, evaluated afresh.
func (p *Planner) score(sh *shape, b *cluster.Pool) int32 {
	v := p.evaluate(sh, b)
	if !p.turnover.Lives {
		return sh.policy.score(p, &v, nil, sh)
	}
	broken := p.breaks(sh, b, int32(v.roughIdle))
	return sh.policy.score(p, &v, &broken, sh)
}
