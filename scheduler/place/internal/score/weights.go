// SPDX-License-Identifier: MPL-2.0

package score

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
)

// Weights are the parameters of every policy, in one place. [DefaultWeights]
// lists the defaults.
//
// The node score of all policies is
//
//	score = GPU·gpu + Memory·memory + CPU·cpu − Fragmentation·fragmentation
//
// with the terms that evaluate.go defines. Weights are in thousandths, so that
// scores are integers.
type Weights struct {
	GPUMilli           int64 // 400: utilization of the node's GPUs, compute and memory
	MemoryMilli        int64 // 300: utilization of host memory
	CPUMilli           int64 // 200: utilization of CPU
	FragmentationMilli int64 // 100: what the placement breaks for later work

	// MeasuredMilli blends measurement into the utilization terms: 0 is
	// allocation alone, 1000 measurement alone where there is one.
	MeasuredMilli int64
	// HeatMilli is the price of a GPU whose tasks and a newcomer would use more compute than
	// it has, as far as that is measured or was before: 4000 charges four milli per milli, more than
	// the gain of keeping other GPUs free, so that it stays the last resort.
	HeatMilli int64

	// StepMilli is the resolution of expected waste, in GPU milli. Within one
	// step the utilization terms decide.
	StepMilli int64
	// CoarseStepMilli and CoarseMisses take the place of StepMilli and of the misses
	// of Fine in a cluster that only fills up, where hardly any task takes little of
	// a GPU ([forecast.Demand.Coarse]): there the tightest fit is nearly as good as
	// any, and waste only decides between clearly different costs.
	CoarseStepMilli int64
	CoarseMisses    int
	// Rough and Fine set how carefully waste is estimated. Every node is looked
	// at roughly; those that could be the best by MarginMilli are looked at
	// finely. No node scores better than its rough estimate and the margin.
	// Without Fine streams the rough estimate decides.
	Rough, Fine forecast.Precision
	// LiveRough and LiveFine take their place where tasks end: what a node has left
	// is offered to few tasks there before a neighbor is gone and it is another node.
	// CoarseLiveMisses takes the place of their misses where hardly any task takes little of a GPU.
	LiveRough, LiveFine forecast.Precision
	CoarseLiveMisses    int
	MarginMilli         int64

	// ModelPriceMilli scales the price of models that constrained tasks need:
	// 1000 charges a model that they will need in full as much as the task
	// takes of it.
	ModelPriceMilli int64
	// ModelPriceCapMilli bounds the price of a model that constrained tasks need.
	ModelPriceCapMilli int64
	// SlotPriceMilli is the price, per GPU, of destroying room for tasks that
	// need several whole GPUs, where there is no more room than will be needed.
	SlotPriceMilli int64
	// SlotFloorMilli bounds the part of that price, in thousandths, which is
	// charged where there is room enough, so that started nodes are filled
	// first: twice the tasks expected per place for them.
	SlotFloorMilli int64
	// OddPrices is how many times as high prices are ([forecast.Pricing.Careful]) in a cluster
	// that only fills up, where nothing was learned from a history and what arrives lately is
	// unlike what arrived in all ([forecast.Trend]), while much of it takes one whole GPU: what
	// comes next may need room for several. 0: prices are never careful for that.
	OddPrices int64
	// EarlyMilli is which part of the GPU, in thousandths, must be free for prices to be careful
	// there whatever arrives, though no higher: what small tasks break first is the best room.
	EarlyMilli int64
	// DistancePriceMilli is the price of giving a task that asked for close
	// GPUs ones without any NVLink between them.
	DistancePriceMilli int64
	// RepriceEvery is the number of arrivals between two computations of the
	// prices on a cluster of up to 1,200 pools; larger ones wait in proportion.
	// LiveRepriceEvery takes its place where tasks end, on a cluster of up to 1,200 pools:
	// free capacity and room turn over there, while in a cluster that fills up
	// both only grow less, slowly. In a larger one it would cost too much: a sixth more
	// time per decision on 10,000 nodes.
	RepriceEvery, LiveRepriceEvery int64
	// HeadroomSigmaMilli is z of [forecast.Headroom], in thousandths: how much room for large
	// tasks is kept while smaller ones can wait. HeadroomWait is for how long each of these
	// waits for it at most; 0: not at all.
	HeadroomSigmaMilli int64
	HeadroomWait       time.Duration
	// DriftMilli is how far the demand must have moved, in thousandths of the
	// arrivals, to be learned again. It is looked at after 100 arrivals
	// and then whenever their number has doubled.
	DriftMilli int64
	// HistoryTasks is for how many arrivals a long history counts, GuessTasks
	// for how many a short one or the general mix without any.
	HistoryTasks, GuessTasks int64
	// DemandShapes is how many shapes of task the demand tells apart at most; less
	// than 1 means 1. Where there are more, tasks are forgotten: of the larger of its
	// two samples, the prior and what arrived, as they are then, about half, at random.
	DemandShapes int
}

// DefaultWeights are the defaults of every field.
func DefaultWeights() Weights {
	return Weights{
		GPUMilli: 400, MemoryMilli: 300, CPUMilli: 200, FragmentationMilli: 100, HeatMilli: 4000,
		StepMilli: 20, CoarseStepMilli: 150, CoarseMisses: 6, Rough: forecast.Precision{Streams: 14, Misses: 9, CPUSteps: 96}, Fine: forecast.Precision{Streams: 48, Misses: 12, CPUSteps: 96}, MarginMilli: 40,
		LiveRough: forecast.Precision{Streams: 20, Misses: 3, CPUSteps: 96}, LiveFine: forecast.Precision{Streams: 96, Misses: 3, CPUSteps: 96}, CoarseLiveMisses: 1,
		ModelPriceMilli: 1000, ModelPriceCapMilli: 4000, SlotPriceMilli: 100, SlotFloorMilli: 30, OddPrices: 30, EarlyMilli: 900, DistancePriceMilli: 1000, RepriceEvery: 300, LiveRepriceEvery: 100, DriftMilli: 100,
		HeadroomSigmaMilli: 7000, HeadroomWait: 5 * time.Minute,
		HistoryTasks: 3000, GuessTasks: 500, DemandShapes: 2048,
	}
}

// FastWeights are DefaultWeights with a coarser estimate of waste: several
// times faster on large clusters, a few tenths of a point less allocated.
func FastWeights() Weights {
	w := DefaultWeights()
	w.Rough, w.Fine, w.MarginMilli = forecast.Precision{Streams: 14, Misses: 5, CPUSteps: 12}, forecast.Precision{}, 0
	w.LiveRough, w.LiveFine = forecast.Precision{Streams: 24, Misses: 1, CPUSteps: 12}, forecast.Precision{}
	w.DriftMilli, w.RepriceEvery, w.LiveRepriceEvery = 200, 800, 800
	w.SlotPriceMilli, w.SlotFloorMilli = 35, 2000 // old prices must be no cliff
	return w
}
