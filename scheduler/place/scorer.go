package place

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// Scorer says what a placement is worth, at what it has learned of the demand and at the
// prices of the moment. It is not safe for concurrent use.
type Scorer struct {
	snap     *cluster.Snapshot
	weights  Weights
	turnover forecast.Turnover

	rough, fine *wasteEstimator // of two precisions
	prices      *forecast.Prices
	places      *forecast.Places
	rooms       []classRoom // by class ID
	largest     forecast.Largest
	lessons     int // how often the demand was learned
	epoch       int // how often prices were computed

	steps   divider // of cost, by Weights.StepMilli or what takes its place
	perStep int64   // points of one step of cost

	shares []int32 // scratch
	parts  []forecast.Part
	gpus   []int // scratch
}

// NewScorer scores placements on a snapshot, once it has learned a demand.
func NewScorer(s *cluster.Snapshot, w Weights) *Scorer {
	return &Scorer{snap: s, weights: w, perStep: stepTerm * w.FragmentationMilli / 1000}
}

// Learn learns a demand, which is coarse where hardly any task takes little of a GPU, and
// forgets what was estimated for another. Prices are to be computed next.
func (p *Scorer) Learn(supply *forecast.Supply, d *forecast.Demand, coarse bool) {
	w := &p.weights
	rough, fine, step := w.Rough, w.Fine, w.StepMilli
	switch {
	case p.turnover.Lives:
		rough, fine = w.LiveRough, w.LiveFine
		if coarse {
			rough.Misses, fine.Misses = min(rough.Misses, w.CoarseLiveMisses), min(fine.Misses, w.CoarseLiveMisses)
		}
	case coarse:
		rough.Misses, fine.Misses, step = min(rough.Misses, w.CoarseMisses), w.CoarseMisses, w.CoarseStepMilli
	}
	p.rough = newWasteEstimator(rough)
	p.rough.learn(supply, d)
	p.fine = p.rough
	if fine.Streams > 0 {
		p.fine = newWasteEstimator(fine)
		p.fine.learn(supply, d)
	}
	p.steps = newDivider(step)
	p.largest = supply.Largest()
	p.places, p.rooms = forecast.NewPlaces(supply, d, d.Weights()), p.rooms[:0]
	p.lessons++
}

// Price computes the prices for a demand, so careful as [forecast.Pricing.Careful] says.
func (p *Scorer) Price(supply *forecast.Supply, d *forecast.Demand, caution int64) {
	w := &p.weights
	pricing := forecast.Pricing{ModelMilli: w.ModelPriceMilli, ModelCapMilli: w.ModelPriceCapMilli, SlotMilli: w.SlotPriceMilli, SlotFloor: w.SlotFloorMilli}
	pricing = pricing.Careful(caution)
	now := forecast.NewPrices(supply, d, &pricing)
	was := p.places.Price
	p.places.SetPrices(supply, d, d.Weights(), supply.Free(), p.turnover.Rate)
	now.Fill(1 - p.turnover.Rate)
	if p.turnover.Lives {
		now.Spare = forecast.SparePrice(p.snap.CPUPerGPU(), p.turnover.Rate)
	}
	if p.prices == nil || !p.prices.Equal(now) || p.places.Price != was {
		p.prices = now
		p.epoch++
	}
}

// wasteEstimator is expected waste by one precision.
type wasteEstimator struct {
	*forecast.Waste
	current []classWaste // of pools as they are, by class ID
}

// classWaste is the expected waste of the pools of a class of this birth.
type classWaste struct {
	born  int64
	waste int32
}

func newWasteEstimator(p forecast.Precision) *wasteEstimator {
	return &wasteEstimator{Waste: forecast.NewWaste(p)}
}

// learn forgets what was estimated and learns the demand.
func (e *wasteEstimator) learn(s *forecast.Supply, d *forecast.Demand) {
	e.current = e.current[:0]
	e.Learn(s, d)
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

// stepTerm is the fragmentation term of one step of waste under BALANCED.
const stepTerm = 10 * 1000
