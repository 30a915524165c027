// SPDX-License-Identifier: MPL-2.0

package score

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// Scorer computes the worth of a placement, by the demand that it has learned and at the
// prices of the moment. It is not safe for concurrent use.
type Scorer struct {
	snap     *cluster.Snapshot
	weights  Weights
	Turnover forecast.Turnover

	Rough, Fine *WasteEstimator // of two precisions
	Prices      *forecast.Prices
	Places      *forecast.Places
	rooms       []classRoom // by class ID
	largest     forecast.Largest
	Lessons     int // how often the demand was learned
	Epoch       int // how often prices were computed

	Step    int64 // of cost, in milli: Weights.StepMilli or what takes its place
	perStep int64 // points of one step of cost

	shares []int32 // scratch
	parts  []forecast.Part
	gpus   []int // scratch
}

// NewScorer scores placements on a snapshot, once it has learned a demand.
func NewScorer(s *cluster.Snapshot, w Weights) *Scorer {
	return &Scorer{snap: s, weights: w, perStep: stepTerm * w.FragmentationMilli / 1000}
}

// Learn learns a demand, which is coarse where hardly any task takes little of a GPU, and
// forgets the estimates for another. Prices are to be computed next.
func (sc *Scorer) Learn(supply *forecast.Supply, d *forecast.Demand, coarse bool) {
	w := &sc.weights
	rough, fine, step := w.Rough, w.Fine, w.StepMilli
	switch {
	case sc.Turnover.Lives:
		rough, fine = w.LiveRough, w.LiveFine
		if coarse {
			rough.Misses, fine.Misses = min(rough.Misses, w.CoarseLiveMisses), min(fine.Misses, w.CoarseLiveMisses)
		}
	case coarse:
		rough.Misses, fine.Misses, step = min(rough.Misses, w.CoarseMisses), w.CoarseMisses, w.CoarseStepMilli
	}
	sc.Rough = newWasteEstimator(rough, supply, d)
	sc.Fine = sc.Rough
	if fine.Streams > 0 {
		sc.Fine = newWasteEstimator(fine, supply, d)
	}
	sc.Step = step
	sc.largest = supply.Largest()
	sc.Places, sc.rooms = forecast.NewPlaces(supply, d, d.Weights()), sc.rooms[:0]
	sc.Lessons++
}

// Price computes the prices for a demand, so careful as [forecast.Pricing.Careful] says.
func (sc *Scorer) Price(supply *forecast.Supply, d *forecast.Demand, caution int64) {
	w := &sc.weights
	pricing := forecast.Pricing{ModelMilli: w.ModelPriceMilli, ModelCapMilli: w.ModelPriceCapMilli, SlotMilli: w.SlotPriceMilli, SlotFloor: w.SlotFloorMilli}
	pricing = pricing.Careful(caution)
	now := forecast.NewPrices(supply, d, &pricing)
	was := sc.Places.Price
	sc.Places.SetPrices(supply, d, d.Weights(), supply.Free(), sc.Turnover.Rate)
	now.Fill(1 - sc.Turnover.Rate)
	if sc.Turnover.Lives {
		now.Spare = forecast.SparePrice(sc.snap.CPUPerGPU(), sc.Turnover.Rate, d.Several())
	}
	if sc.Prices == nil || !sc.Prices.Equal(now) || sc.Places.Price != was {
		sc.Prices = now
		sc.Epoch++
	}
}

// WasteEstimator is expected waste by one precision.
type WasteEstimator struct {
	*forecast.Waste
	current []classWaste // of pools as they are, by class ID
}

// classWaste is the expected waste of the pools of a class of this birth.
type classWaste struct {
	born  int64
	waste int32
}

// newWasteEstimator estimates waste for a demand.
func newWasteEstimator(p forecast.Precision, s *forecast.Supply, d *forecast.Demand) *WasteEstimator {
	e := &WasteEstimator{Waste: forecast.NewWaste(p)}
	e.Learn(s, d)
	return e
}

// floorDiv is ⌊a/b⌋ for b above 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// stepTerm is the fragmentation term of one step of waste under BALANCED.
const stepTerm = 10 * 1000
