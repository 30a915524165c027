package place

import (
	"math"
	"slices"
)

// prices are what a placement costs beyond the waste on its own node: room on
// models that others depend on, and room for tasks that need several GPUs.
type prices struct {
	model []int64            // per kind, milli of price per milli·1000 of demand
	slots [maxGPUs + 1]int64 // value of a bank by its count of idle GPUs
	spare int64              // milli per thousandth of a node that is left
}

// claim is demand by the set of kinds that it may run on.
type claim struct {
	kinds []int32
	milli float64
}

func newPrices(s *Snapshot, d *demand, w *Weights) *prices {
	p := &prices{model: make([]int64, len(s.kinds))}
	weights := d.weights()
	free := s.freeMilli()
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

func (p *prices) coarsen() {
	for i := range p.model {
		p.model[i] = (p.model[i] + modelGrain/2) / modelGrain * modelGrain
	}
	for i := range p.slots {
		p.slots[i] = (p.slots[i] + slotGrain/2) / slotGrain * slotGrain
	}
}

// fill scales the prices that hold where a cluster only fills up.
func (p *prices) fill(part float64) {
	if part == 1 {
		return
	}
	for i := range p.slots {
		p.slots[i] = int64(float64(p.slots[i])*part/slotGrain+0.5) * slotGrain
	}
}

func (p *prices) equal(o *prices) bool {
	return slices.Equal(p.model, o.model) && p.slots == o.slots && p.spare == o.spare
}

func (s *Snapshot) freeMilli() float64 {
	var sum int64
	for i := range s.stock {
		sum += s.stock[i].free
	}
	return float64(sum)
}

func milliOf(r *Request) float64 {
	switch {
	case r.GPUs == 0:
		return 0
	case r.Whole:
		return float64(r.GPUs) * gpuMilli
	}
	return float64(r.GPUs) * float64(max(r.ShareMilli, 1))
}

func (p *prices) priceModels(s *Snapshot, d *demand, w *Weights, weights []float64, free float64) {
	load := make([]float64, len(s.kinds))
	for _, c := range claimsOf(s, d, weights, free) {
		pour(c.kinds, c.milli, load, s.stock)
	}
	for id := range load {
		u := load[id] / (float64(s.stock[id].free) + 1)
		p.model[id] = min(int64(u*float64(w.ModelPriceMilli)), w.ModelPriceCapMilli)
	}
}

// claimsOf is the demand to come that is bound to some kinds, the most bound
// first: tasks that name models, and tasks that fit an empty node of so few
// kinds that these have less than half of what is free.
func claimsOf(s *Snapshot, d *demand, weights []float64, free float64) []claim {
	var total float64
	var claims []claim
	biggest := make([]size, len(s.kinds))
	for id := range biggest {
		biggest[id] = s.biggest(int32(id))
	}
	var kinds []int32
	for i, e := range d.entries {
		m := weights[i] * milliOf(&e.shape.req)
		if m == 0 {
			continue
		}
		total += m
		kinds = kinds[:0]
		room := 0.0
		for id := range s.kinds {
			if _, ok := futureOf(s, e.shape, int32(id), biggest[id]); ok {
				kinds = append(kinds, int32(id))
				room += float64(s.stock[id].free)
			}
		}
		if len(kinds) == 0 || len(e.shape.req.Models) == 0 && 2*room > free {
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
func pour(kinds []int32, amount float64, load []float64, st []stock) {
	level := func(k int32) float64 { return load[k] / (float64(st[k].free) + 1) }
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
		sumFree += float64(st[k].free) + 1
		l := (sumLoad + amount) / sumFree
		if i+1 < len(order) && l > level(order[i+1]) {
			continue
		}
		for _, k := range order[:i+1] {
			load[k] = l * (float64(st[k].free) + 1)
		}
		return
	}
}

const biggestSlot = 8

func (p *prices) priceSlots(s *Snapshot, d *demand, w *Weights, weights []float64, free float64) {
	var mean float64
	for i, e := range d.entries {
		mean += weights[i] * milliOf(&e.shape.req)
	}
	if mean == 0 {
		return
	}
	want := d.wanted()
	for k := 2; k <= biggestSlot; k++ {
		rho := scarcity(want[k]*free/mean, s.slots(int32(k)), float64(w.SlotFloorMilli)/1000)
		for idle := range p.slots {
			p.slots[idle] += int64(float64(w.SlotPriceMilli) * float64(k) * rho * float64(idle/k))
		}
	}
}

// wanted is which part of the arrivals, 0 to 1, are tasks of so many whole GPUs:
// by the prior or by what has arrived, whichever is more. Room that is gone does
// not come back, so neither may play down the other.
func (d *demand) wanted() (parts [biggestSlot + 1]float64) {
	var expected, arrived [biggestSlot + 1]float64
	for _, e := range d.entries {
		if r := &e.shape.req; r.Whole && r.GPUs >= 2 && r.GPUs <= biggestSlot {
			expected[r.GPUs] += float64(e.tasks[prior]) / float64(max(1, d.tasks[prior]))
			arrived[r.GPUs] += float64(e.tasks[seen]) / float64(max(firstReview, d.tasks[seen]))
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
// slots, then proportional to what is needed, at most the floor.
func scarcity(expected, slots, floor float64) float64 {
	short := min(1, (expected+2*math.Sqrt(expected))/(slots+1))
	return max(short*short*short*short, min(floor, 2*expected/(slots+1)))
}

// slots counts the places for k whole GPUs of one bank.
func (s *Snapshot) slots(k int32) float64 {
	n := 0
	for i := range s.stock {
		for idle, banks := range s.stock[i].idle {
			n += int(idle/k) * banks
		}
	}
	return float64(n)
}
