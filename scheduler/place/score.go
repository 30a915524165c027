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
	waste  int32 // waste added, milli; negative: healed
	usage  int16 // weighted utilisation terms after placement, 0..1000
	before uint8 // idle GPUs of the bank before
	after  uint8 // and after
}

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
		t.gpu = p.gpuAfter(sh, b)
	}
	return t
}

func usedMilli(capacity, free int64) int64 {
	if capacity <= 0 {
		return 0
	}
	return min(max((capacity-free)*1000/capacity, 0), 1000)
}

// gpuAfter is the mean over the bank's GPUs of compute and memory in use.
func (p *Planner) gpuAfter(sh *shape, b *bank) int64 {
	k := &p.snap.kinds[b.kind]
	var compute, memory int64
	for i := range b.cells {
		c, m := cellUse(&b.cells[i], k)
		g := &b.node.spec.GPUs[b.gpus[i]]
		compute += blend(c, g.MeasuredMilli, p.weights.MeasuredMilli)
		memory += blend(m, measuredMemory(g), p.weights.MeasuredMilli)
	}
	if sh.req.GPUs > 0 {
		nd := sh.need(p.snap, b.kind)
		compute += nd.take.Milli * int64(sh.req.GPUs)
		memory += int64(nd.share) * int64(sh.req.GPUs)
	}
	return min((compute+memory)/2/int64(len(b.cells)), 1000)
}

// cellUse is the compute and memory of a GPU that are allocated, in thousandths.
func cellUse(c *cell, k *kind) (compute, memory int64) {
	compute = gpuMilli - int64(c.milli)
	switch {
	case k.Slices > 0:
		memory = (k.Slices - int64(c.slices)) * gpuMilli / k.Slices
	case k.Replicas > 0:
		memory = (k.Replicas - int64(c.replicas)) * gpuMilli / k.Replicas
	case c.tasks > 0:
		memory = gpuMilli
	}
	return compute, memory
}

func measuredMemory(g *GPU) int64 {
	if g.MeasuredMemoryMiB < 0 || g.MemoryMiB <= 0 {
		return Unmeasured
	}
	return g.MeasuredMemoryMiB * 1000 / g.MemoryMiB
}

func blend(allocated, measured, part int64) int64 {
	if part == 0 || measured < 0 {
		return allocated
	}
	return ((1000-part)*allocated + part*measured) / 1000
}

// judge works out what placing the shape on the bank does.
func (p *Planner) judge(sh *shape, b *bank) (verdict, bool) {
	if p.snap.fit(sh, b) != fitsNow {
		return verdict{}, false
	}
	u := p.usageAfter(sh, b)
	v := verdict{
		usage:  int16((p.weights.GPUMilli*u.gpu + p.weights.MemoryMilli*u.memory + p.weights.CPUMilli*u.cpu) / 1000),
		before: uint8(b.idle), after: uint8(b.idle),
	}
	if b.kind >= 0 {
		ch := p.choose(sh, b)
		v.waste, v.after = ch.waste, uint8(ch.idle)
	}
	return v, true
}

// points turns a verdict into the score at the current prices.
func (p *Planner) points(v verdict, sh *shape, b *bank) int32 {
	cost := int64(v.waste)
	if b.kind >= 0 {
		cost += p.prices.slots[v.before] - p.prices.slots[v.after]
		if sh.req.GPUs > 0 {
			nd := sh.need(p.snap, b.kind)
			cost += p.prices.model[b.kind] * int64(nd.share) * int64(sh.req.GPUs) / 1000
		}
	}
	steps := floorDiv(cost, p.weights.StepMilli)
	return int32(int64(v.usage) - steps*stepTerm*p.weights.FragmentationMilli/1000)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}
