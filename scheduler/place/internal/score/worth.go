// SPDX-License-Identifier: MPL-2.0

package score

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// Worth is what a pool is worth to later work as it is.
type Worth struct {
	waste, slots int64
	places       forecast.PlaceCounts
}

// Worth is what a pool is worth to later work as it is.
func (sc *Scorer) Worth(b *cluster.Pool) Worth {
	if b.Kind < 0 {
		return Worth{}
	}
	w := Worth{waste: int64(sc.WasteNow(b, sc.Fine)), slots: sc.slots(uint8(b.Idle), roomFor(b, b.Node.CPU))}
	if sc.Turnover.Lives {
		room := b.Supply()
		w.places = sc.Places.Counts(&room)
	}
	return w
}

// Healed is what a pool gains that has come from one worth to another, in milli.
func (sc *Scorer) Healed(before, after *Worth) int64 {
	gained := after.places.Minus(&before.places)
	return before.waste - after.waste + after.slots - before.slots + sc.Places.Cost(&gained)
}

// CostAt is what placing a shape on a pool that it fits costs, as under BALANCED.
func (sc *Scorer) CostAt(sh *Task, b *cluster.Pool) int64 {
	v := sc.evaluate(sh, b)
	cost := sc.wasted(&v, v.waste, v.after) + sc.ModelPrice(sh.Shape, v.kind)
	if sc.Turnover.Lives {
		broken := sc.breaks(sh.Shape, b, int32(v.after))
		cost += sc.Places.Cost(&broken)
	}
	return cost
}
