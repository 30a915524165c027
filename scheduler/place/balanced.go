package place

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// balanced is the policy BALANCED: the placement that costs later work least.
//
//	score = gpu·GPU + memory·Memory + cpu·CPU − ⌊cost / Step⌋·10·Fragmentation
//	cost  = W(after) − W(before) + P_model + (1−δ)·P_slot + V(before) − V(after) + P_spare
//
// W is expected waste ([forecast.Waste]), P_model, P_slot and P_spare are prices
// ([forecast.Prices]), V is room for several GPUs where tasks end
// ([forecast.Places]) and δ says whether they do ([forecast.Turnover]). With the
// default weights a step of cost weighs 0.1·10 = 1, more than the utilization terms
// together (0.9): cost decides, and among nodes that cost the same the fullest wins.
//
// Every state of a node is estimated roughly when it is new, and finely when the
// rough estimate, less a margin, brings it to the top. The score is never better
// than the rough one and the margin, so that the answer does not depend on what was
// asked before.
type balanced struct{}

// stepTerm is the fragmentation term of one step of waste under BALANCED.
const stepTerm = 10 * 1000

func (balanced) sign() int64 { return 1 }

func (balanced) precision(p *Planner) *wasteEstimator { return p.fine }

// complete leaves out the margin by which a fine estimate may be lower.
func (balanced) complete(p *Planner, v *estimate, _ *cluster.Pool) {
	if p.fine != p.rough {
		v.roughWaste -= int32(p.weights.MarginMilli)
		v.known = rough
	}
}

// prefer is the waste that is expected then.
func (balanced) prefer(p *Planner, b *cluster.Pool, index int, nd *fit.Need, cpu int64, ws *wasteEstimator) int32 {
	return p.idle(b, cpu, append(p.gpus[:0], index), nd, ws)
}

func (c balanced) score(p *Planner, v *estimate, broken *forecast.PlaceCounts, sh *shape) int32 {
	cost := c.charged(p, v, sh)
	if broken != nil {
		cost += p.places.Cost(broken)
	}
	return int32(int64(v.usage) - p.steps.floor(cost)*p.perStep)
}

func (balanced) lost(p *Planner, term int64, _ *cluster.Pool) int64 {
	return term * p.steps.by / stepTerm
}

// charged is the cost of a placement by BALANCED, in milli: by the fine estimate, or by the
// rough one less the margin where that is more or all that is known.
func (c balanced) charged(p *Planner, v *estimate, sh *shape) int64 {
	cost := p.wasted(v, v.roughWaste, v.roughIdle)
	if v.known == fine {
		cost = max(cost, p.wasted(v, v.waste, v.after))
	}
	return cost + p.charges(v, sh)
}

// wasted is an estimate of waste and the price of the room for several that goes with it, of
// a placement that leaves so many GPUs idle, in milli.
func (p *Planner) wasted(v *estimate, waste int32, idle uint8) int64 {
	if v.kind < 0 {
		return int64(waste)
	}
	return int64(waste) + p.slots(v.before, v.roomBefore) - p.slots(idle, v.roomAfter)
}

// charges are the prices of a placement that do not depend on an estimate, in milli.
func (p *Planner) charges(v *estimate, sh *shape) int64 {
	return p.prices.Spare*int64(v.left) + p.modelPrice(sh, v.kind)
}

// slots is what a pool is worth to tasks of several GPUs with so many idle, and CPU that is
// room for so many.
func (p *Planner) slots(idle, room uint8) int64 {
	if p.prices.Careful {
		idle = min(idle, room)
	}
	return p.prices.Slots[idle]
}

// modelPrice is the price of what a shape takes of a kind of GPU, in milli.
func (p *Planner) modelPrice(sh *shape, kind int32) int64 {
	if sh.Req.GPUs == 0 || kind < 0 {
		return 0
	}
	return p.prices.Model[kind] * int64(sh.Need(p.snap, kind).Share) * int64(sh.Req.GPUs) / 1000
}

// left is what a node has to spare after a placement, in thousandths of the largest.
func (p *Planner) left(sh *shape, b *cluster.Pool) int16 {
	free := b.Free
	if sh.Req.GPUs > 0 {
		free -= int64(sh.Need(p.snap, b.Kind).Share) * int64(sh.Req.GPUs)
	}
	return forecast.Left(b.Node.CPU-sh.Req.CPUMHz, free, p.largest)
}

// breaks is what placing a shape on a pool that it fits takes away of room for
// several GPUs, so that so many GPUs stay idle.
func (p *Planner) breaks(sh *shape, b *cluster.Pool, idle int32) forecast.PlaceCounts {
	if b.Kind < 0 {
		return forecast.PlaceCounts{}
	}
	before, room := p.roomNow(b), b.Supply()
	room.Idle, room.Residents = idle, room.Residents+1
	room.CPU -= sh.Req.CPUMHz
	room.Memory -= sh.Req.MemoryMiB
	after := p.places.Counts(&room)
	return before.Minus(&after)
}

// classRoom is the room for several GPUs on each of the pools of a class of this birth.
type classRoom struct {
	born   int64
	counts forecast.PlaceCounts
}

// roomNow is the room for several GPUs that a pool has as it is, remembered for its class
// until the demand changes.
func (p *Planner) roomNow(b *cluster.Pool) *forecast.PlaceCounts {
	for int(b.Class) >= len(p.rooms) {
		p.rooms = append(p.rooms, classRoom{born: -1})
	}
	c := &p.rooms[b.Class]
	if born := p.snap.States.List[b.Class].Born; c.born != born {
		room := b.Supply()
		*c = classRoom{born, p.places.Counts(&room)}
	}
	return &c.counts
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
