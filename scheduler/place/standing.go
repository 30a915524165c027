package place

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// standing is what a pool is worth to later work as it is.
type standing struct {
	waste, slots int64
	places       forecast.PlaceCounts
}

func (p *Scorer) standing(b *cluster.Pool) standing {
	if b.Kind < 0 {
		return standing{}
	}
	s := standing{waste: int64(p.wasteNow(b, p.fine)), slots: p.slots(uint8(b.Idle), roomFor(b, b.Node.CPU))}
	if p.turnover.Lives {
		room := b.Supply()
		s.places = p.places.Counts(&room)
	}
	return s
}

// healed is what a pool gains that has come from one standing to another, in milli.
func (p *Scorer) healed(before, after *standing) int64 {
	gained := after.places.Minus(&before.places)
	return before.waste - after.waste + after.slots - before.slots + p.places.Cost(&gained)
}

// costAt is what placing a shape on a pool that it fits costs, as under BALANCED.
func (p *Scorer) costAt(sh *Task, b *cluster.Pool) int64 {
	v := p.evaluate(sh, b)
	cost := p.wasted(&v, v.waste, v.after) + p.modelPrice(sh.Shape, v.kind)
	if p.turnover.Lives {
		broken := p.breaks(sh.Shape, b, int32(v.after))
		cost += p.places.Cost(&broken)
	}
	return cost
}
