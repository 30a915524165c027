// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"math"
	"slices"
)

// Prices are what a placement costs beyond the waste on its own node: room on
// models that others depend on, and room for tasks that need several GPUs.
type Prices struct {
	Model []int64            // per kind, milli of price per milli·1000 of demand
	Slots [MaxGPUs + 1]int64 // value of a pool by its count of idle GPUs
	Spare int64              // milli per thousandth of a node that is left
	// Careful says that room for several counts only with the CPU for it.
	Careful bool
}

// claim is demand by the set of kinds that it may run on.
type claim struct {
	kinds []int32
	milli float64
}

// NewPrices works out the prices at which the supply meets the demand in a cluster
// that fills up.
func NewPrices(s *Supply, d *Demand, w *Pricing) *Prices {
	p := &Prices{Model: make([]int64, len(s.Kinds)), Careful: w.careful}
	weights := d.Weights()
	free := s.Free()
	p.priceModels(s, d, w, weights, free)
	p.priceSlots(s, d, w, weights, free)
	p.coarsen()
	return p
}

// Prices are rounded, so that most of the time they stay as they are and
// nothing needs to be scored again.
const (
	modelGrain = 10 // thousandths
	slotGrain  = 5  // milli
)

func (p *Prices) coarsen() {
	for i := range p.Model {
		p.Model[i] = (p.Model[i] + modelGrain/2) / modelGrain * modelGrain
	}
	for i := range p.Slots {
		p.Slots[i] = (p.Slots[i] + slotGrain/2) / slotGrain * slotGrain
	}
}

// Fill scales the prices that hold where a cluster only fills up.
func (p *Prices) Fill(part float64) {
	if part == 1 {
		return
	}
	for i := range p.Slots {
		p.Slots[i] = int64(float64(p.Slots[i])*part/slotGrain+0.5) * slotGrain
	}
}

// Equal reports that both charge the same.
func (p *Prices) Equal(o *Prices) bool {
	return slices.Equal(p.Model, o.Model) && p.Slots == o.Slots && p.Spare == o.Spare && p.Careful == o.Careful
}

// Pricing scales the prices.
type Pricing struct {
	ModelMilli    int64 // 1000 charges a model that bound demand needs in full as much as the task takes of it
	ModelCapMilli int64 // bounds that
	SlotMilli     int64 // per GPU of room for several that is destroyed, where there is no more than will be needed
	SlotFloor     int64 // the part, in thousandths, that is charged where there is room enough
	careful       bool
}

// Careful is a pricing under which scarce models and room for several GPUs are hardly taken
// where there is a choice: the price of room is n times as high, counts only with the CPU
// for it, and is charged in full also where there is room enough; that of models, which must
// not be outweighed by it, is four times as much. 0 is the pricing as it is.
func (w Pricing) Careful(n int64) Pricing {
	if n > 0 {
		w.ModelMilli, w.ModelCapMilli, w.SlotMilli, w.SlotFloor, w.careful = 4*n*w.ModelMilli, 4*n*w.ModelCapMilli, n*w.SlotMilli, 1000, true
	}
	return w
}

func (p *Prices) priceModels(s *Supply, d *Demand, w *Pricing, weights []float64, free float64) {
	load := make([]float64, len(s.Kinds))
	for _, c := range claimsOf(s, d, weights, free) {
		pour(c.kinds, c.milli, load, s.Kinds)
	}
	for id := range load {
		u := load[id] / (float64(s.Kinds[id].Free) + 1)
		p.Model[id] = min(int64(u*float64(w.ModelMilli)), w.ModelCapMilli)
	}
}

// claimsOf is the demand to come that is bound to some kinds, the most bound
// first: tasks that name models, and tasks that fit an empty node of so few different
// kinds that these have less than half of the free GPUs.
func claimsOf(s *Supply, d *Demand, weights []float64, free float64) []claim {
	var total float64
	var claims []claim
	var kinds []int32
	for i, e := range d.entries {
		m := weights[i] * float64(e.shape.Milli)
		if m == 0 {
			continue
		}
		total += m
		kinds = kinds[:0]
		room := 0.0
		for id := range s.Kinds {
			if _, ok := futureOf(e.shape, int32(id), s.Kinds[id].Largest); ok {
				kinds = append(kinds, int32(id))
				room += float64(s.Kinds[id].Free)
			}
		}
		if len(kinds) == 0 || !e.shape.Bound && 2*room > free {
			continue
		}
		at := slices.IndexFunc(claims, func(o claim) bool { return slices.Equal(o.kinds, kinds) })
		if at < 0 {
			claims = append(claims, claim{slices.Clone(kinds), m})
		} else {
			claims[at].milli += m
		}
	}
	for i := range claims {
		claims[i].milli *= free / total
	}
	slices.SortStableFunc(claims, func(a, b claim) int { return len(a.kinds) - len(b.kinds) })
	return claims
}

// pour spreads an amount over kinds so that load per free milli rises evenly,
// lowest first.
func pour(kinds []int32, amount float64, load []float64, st []Kind) {
	level := func(k int32) float64 { return load[k] / (float64(st[k].Free) + 1) }
	order := slices.Clone(kinds)
	slices.SortStableFunc(order, func(a, b int32) int {
		switch la, lb := level(a), level(b); {
		case la < lb:
			return -1
		case la > lb:
			return 1
		}
		return 0
	})
	sumLoad, sumFree := 0.0, 0.0
	for i, k := range order {
		sumLoad += load[k]
		sumFree += float64(st[k].Free) + 1
		l := (sumLoad + amount) / sumFree
		if i+1 < len(order) && l > level(order[i+1]) {
			continue
		}
		for _, k := range order[:i+1] {
			load[k] = l * (float64(st[k].Free) + 1)
		}
		return
	}
}

const biggestSlot = 8

func (p *Prices) priceSlots(s *Supply, d *Demand, w *Pricing, weights []float64, free float64) {
	var mean float64
	for i, e := range d.entries {
		mean += weights[i] * float64(e.shape.Milli)
	}
	if mean == 0 {
		return
	}
	want := d.wanted()
	for k := 2; k <= biggestSlot; k++ {
		rho := scarcity(want[k]*free/mean, s.slots(int32(k)), float64(w.SlotFloor)/1000)
		for idle := range p.Slots {
			p.Slots[idle] += int64(float64(w.SlotMilli) * float64(k) * rho * float64(idle/k))
		}
	}
}

// wanted is the part of the arrivals, 0 to 1, that are tasks of each number of whole GPUs:
// by the prior or by the arrivals, whichever is more. Room that is gone does
// not come back, so neither may play down the other.
func (d *Demand) wanted() (parts [biggestSlot + 1]float64) {
	var expected, arrived [biggestSlot + 1]float64
	for _, e := range d.entries {
		if r := e.shape; r.Whole && r.GPUs >= 2 && r.GPUs <= biggestSlot {
			expected[r.GPUs] += float64(e.tasks[Prior]) / float64(max(1, d.tasks[Prior]))
			arrived[r.GPUs] += float64(e.tasks[Seen]) / float64(max(FirstReview, d.tasks[Seen]))
		}
	}
	for k := range parts {
		parts[k] = max(expected[k], arrived[k])
	}
	return parts
}

// scarcity is the part, 0 to 1, of its price that is charged for a slot when so
// many tasks are expected: all of it when they may need every slot (chance
// included: two standard deviations), soon much less when there are more
// slots, then proportional to the need, at most the floor.
func scarcity(expected, slots, floor float64) float64 {
	short := min(1, (expected+2*math.Sqrt(expected))/(slots+1))
	return max(short*short*short*short, min(floor, 2*expected/(slots+1)))
}

// slots counts the places for k whole GPUs on like GPUs of one node.
func (s *Supply) slots(k int32) float64 {
	n := 0
	for i := range s.Kinds {
		for idle, pools := range s.Kinds[i].Idle {
			n += int(idle/k) * pools
		}
	}
	return float64(n)
}
