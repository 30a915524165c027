package place

// score.go defines the terms of the node score and how each policy signs them.
// All terms are in thousandths and describe the node after the placement.
//
//	gpu            (compute/capacity + GPU memory/capacity) / 2 of the bank
//	memory, cpu    allocated/capacity of the host
//	fragmentation  BALANCED: 10 per step of expected waste and prices caused
//	               PACK, SPREAD: expected waste / capacity of the bank, 0..1
//
//	BALANCED, PACK:  +gpu +memory +cpu −fragmentation
//	SPREAD:          −gpu −memory −cpu −fragmentation
//
// With the default weights a step of waste under BALANCED weighs 0.1·10 = 1,
// more than the utilisation terms together (0.9): waste decides, and among
// nodes that waste the same the fullest wins.

// worst is the points of a bank that cannot take the task.
const worst = -1 << 31

// stepTerm is the fragmentation term of one step of waste under BALANCED.
const stepTerm = 10 * 1000

// verdict is what a shape's placement on a bank does, apart from prices.
type verdict struct {
	guess    int32 // waste added by the rough estimate less the margin, milli
	waste    int32 // waste added, milli; negative: healed
	kind     int32 // of the bank
	usage    int16 // weighted utilisation terms after placement, 0..1000
	left     int16 // of the node after placement, in thousandths of the largest
	stranded int16 // weighted fragmentation term of PACK and SPREAD
	before   uint8 // idle GPUs of the bank before
	after    uint8 // and after
	hunch    uint8 // and after by the rough estimate
	known    knowledge
}

// knowledge is how much of a verdict is known.
type knowledge uint8

const (
	unseen knowledge = iota
	unfit            // the bank cannot take the shape
	rough            // waste and after are not known yet
	fine
)

// usageTerms are the utilisation terms of a bank after a placement, in
// thousandths.
type usageTerms struct{ gpu, memory, cpu int64 }

func (p *Planner) usageAfter(sh *shape, b *bank) usageTerms {
	n := b.node
	t := usageTerms{
		memory: usedMilli(n.spec.MemoryMiB, n.memory-sh.req.MemoryMiB),
		cpu:    usedMilli(n.spec.CPUMHz, n.cpu-sh.req.CPUMHz),
	}
	if len(b.cells) > 0 {
		used := blend(b.used, b.measured, p.weights.MeasuredMilli)
		if sh.req.GPUs > 0 {
			nd := sh.need(p.snap, b.kind)
			used += (nd.take.Milli + int64(nd.share)) / 2 * int64(sh.req.GPUs)
		}
		t.gpu = min(used/int64(len(b.cells)), 1000)
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

// glance works out roughly what placing the shape does on a bank that it fits.
func (p *Planner) glance(sh *shape, b *bank) verdict {
	u := p.usageAfter(sh, b)
	v := verdict{
		kind:   b.kind,
		usage:  int16((p.weights.GPUMilli*u.gpu + p.weights.MemoryMilli*u.memory + p.weights.CPUMilli*u.cpu) / 1000),
		left:   p.left(sh, b),
		before: uint8(b.idle), after: uint8(b.idle), hunch: uint8(b.idle), known: fine,
	}
	if b.kind < 0 {
		return v
	}
	ch := p.choose(sh, b, p.rough)
	v.guess, v.hunch = ch.waste, uint8(ch.idle)
	v.waste, v.after = v.guess, v.hunch
	if sh.req.Policy == PolicyBalanced && p.fine != p.rough {
		v.guess -= int32(p.weights.MarginMilli)
		v.known = rough
	}
	if sh.req.Policy != PolicyBalanced {
		v.stranded = p.stranded(v.waste, b)
	}
	return v
}

// refine makes a rough verdict fine.
func (p *Planner) refine(v *verdict, sh *shape, b *bank) {
	ch := p.choose(sh, b, p.fine)
	v.waste, v.after, v.known = ch.waste, uint8(ch.idle), fine
}

// judge is a glance, refined where the policy wants it.
func (p *Planner) judge(sh *shape, b *bank) verdict {
	v := p.glance(sh, b)
	if v.known == rough {
		p.refine(&v, sh, b)
	}
	return v
}

// score is the points of a bank that fits a shape, judged afresh.
func (p *Planner) score(sh *shape, b *bank) int32 {
	v := p.judge(sh, b)
	if !p.turnover.lives {
		return p.points(&v, nil, sh)
	}
	broken := p.breaks(sh, b, int32(v.hunch))
	return p.points(&v, &broken, sh)
}

// estimate is the precision that decides for a shape which GPUs it gets.
func (p *Planner) estimate(sh *shape) *waste {
	if sh.req.Policy == PolicyBalanced {
		return p.fine
	}
	return p.rough
}

// points turns a verdict into the score at the current prices, which only
// BALANCED pays. With it no score is better than by the rough estimate and the
// margin.
func (p *Planner) points(v *verdict, broken *placeCounts, sh *shape) int32 {
	switch sh.req.Policy {
	case PolicyPack:
		return int32(v.usage - v.stranded)
	case PolicySpread:
		return int32(-v.usage - v.stranded)
	}
	cost, _ := p.charged(v, sh)
	if broken != nil {
		cost += p.places.cost(broken)
	}
	return int32(int64(v.usage) - p.steps.floor(cost)*p.perStep)
}

// charged is the cost of a placement by BALANCED, in milli, and the waste in
// it: by the fine estimate, or by the rough one less the margin where that is
// more or all that is known.
func (p *Planner) charged(v *verdict, sh *shape) (cost int64, waste int32) {
	cost, waste = p.cost(v.guess, v.hunch, v, sh), v.guess
	if v.known != fine {
		return cost, waste
	}
	if c := p.cost(v.waste, v.after, v, sh); c > cost {
		return c, v.waste
	}
	return cost, waste
}

// cost is an estimate of waste and the prices of a placement that leaves so many
// GPUs idle, in milli.
func (p *Planner) cost(waste int32, idle uint8, v *verdict, sh *shape) int64 {
	cost := int64(waste) + p.prices.spare*int64(v.left)
	if v.kind < 0 {
		return cost
	}
	cost += p.prices.slots[v.before] - p.prices.slots[idle]
	if sh.req.GPUs > 0 {
		nd := sh.need(p.snap, v.kind)
		cost += p.prices.model[v.kind] * int64(nd.share) * int64(sh.req.GPUs) / 1000
	}
	return cost
}

// stranded is the weighted fragmentation term of PACK and SPREAD: the part of
// the bank that is expected to stay idle for good after so much more is wasted.
func (p *Planner) stranded(waste int32, b *bank) int16 {
	part := int64(p.wasteNow(b, p.rough)+waste) / int64(len(b.cells))
	return int16(p.weights.FragmentationMilli * min(max(part, 0), 1000) / 1000)
}

// divider divides by a constant with a multiplication: prices change often, and
// then every set's score is computed again.
type divider struct{ by, magic int64 }

func newDivider(by int64) divider { return divider{by, 1<<40/by + 1} }

// floor is ⌊v/by⌋. The multiplication is exact for |v| < 2²² and by < 2¹⁷.
func (d divider) floor(v int64) int64 {
	const shift = 1 << 22
	if v <= -shift || v >= shift || d.by >= 1<<17 {
		return floorDiv(v, d.by)
	}
	return (v+shift/d.by*d.by+d.by)*d.magic>>40 - shift/d.by - 1
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}
