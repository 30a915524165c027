package place

import (
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

func (p *Planner) usageAfter(sh *shape, b *gpuPool) usageTerms {
	n := b.node
	t := usageTerms{
		memory: usedMilli(n.spec.MemoryMiB, n.memory-sh.req.MemoryMiB),
		cpu:    usedMilli(n.spec.CPUMHz, n.cpu-sh.req.CPUMHz),
	}
	if len(b.gpus) > 0 {
		used := blend(b.used, b.measured, p.weights.MeasuredMilli)
		if sh.req.GPUs > 0 {
			nd := sh.need(p.snap, b.kind)
			used += (nd.take.Milli + int64(nd.share)) / 2 * int64(sh.req.GPUs)
		}
		t.gpu = min(used/int64(len(b.gpus)), 1000)
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
func (p *Planner) evaluateRoughly(v *estimate, sh *shape, b *gpuPool) {
	u := p.usageAfter(sh, b)
	*v = estimate{
		kind:   b.kind,
		usage:  int16((p.weights.GPUMilli*u.gpu + p.weights.MemoryMilli*u.memory + p.weights.CPUMilli*u.cpu) / 1000),
		left:   p.left(sh, b),
		before: uint8(b.idle), after: uint8(b.idle), roughIdle: uint8(b.idle), known: fine,
	}
	if b.kind < 0 {
		return
	}
	v.roomBefore, v.roomAfter = roomFor(b, b.node.cpu), roomFor(b, b.node.cpu-sh.req.CPUMHz)
	ch := p.choose(sh, b, p.rough)
	v.roughWaste, v.roughIdle = ch.waste, uint8(ch.idle)
	v.waste, v.after = v.roughWaste, v.roughIdle
	sh.policy.complete(p, v, b)
}

// evaluateFinely makes a rough estimate fine.
func (p *Planner) evaluateFinely(v *estimate, sh *shape, b *gpuPool) {
	ch := p.choose(sh, b, p.fine)
	v.waste, v.after, v.known = ch.waste, uint8(ch.idle), fine
}

// evaluate is a rough estimate, made fine where the policy wants it.
func (p *Planner) evaluate(sh *shape, b *gpuPool) (v estimate) {
	p.evaluateRoughly(&v, sh, b)
	if v.known == rough {
		p.evaluateFinely(&v, sh, b)
	}
	return v
}

// score is the points of a pool that fits a shape, evaluated afresh.
func (p *Planner) score(sh *shape, b *gpuPool) int32 {
	v := p.evaluate(sh, b)
	if !p.turnover.Lives {
		return sh.policy.score(p, &v, nil, sh)
	}
	broken := p.breaks(sh, b, int32(v.roughIdle))
	return sh.policy.score(p, &v, &broken, sh)
}
