package place

// Weights are the parameters of every policy, in one place. [DefaultWeights]
// lists the defaults.
//
// The node score of all policies is
//
//	score = GPU·gpu + Memory·memory + CPU·cpu − Fragmentation·fragmentation
//
// with the terms that score.go defines. Weights are in thousandths, so that
// scores are integers.
type Weights struct {
	GPUMilli           int64 // 400: utilisation of the node's GPUs, compute and memory
	MemoryMilli        int64 // 300: utilisation of host memory
	CPUMilli           int64 // 200: utilisation of CPU
	FragmentationMilli int64 // 100: what the placement breaks for later work

	// MeasuredMilli blends measurement into the utilisation terms: 0 is
	// allocation alone, 1000 measurement alone where there is one.
	MeasuredMilli int64

	// StepMilli is the resolution of expected waste, in GPU milli. Within one
	// step the utilisation terms decide.
	StepMilli int64
	// Rough and Fine set how carefully waste is estimated. Every node is looked
	// at roughly; those that could be the best by MarginMilli are looked at
	// finely. No node scores better than its rough estimate and the margin.
	// Without Fine streams the rough estimate decides.
	Rough, Fine precision
	MarginMilli int64

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
	// DistancePriceMilli is the price of giving a task that asked for close
	// GPUs ones without any NVLink between them.
	DistancePriceMilli int64
	// RepriceEvery is the number of arrivals between two computations of the
	// prices on a cluster of up to 1,200 banks; larger ones wait in proportion.
	RepriceEvery int64
	// DriftMilli is how far the demand must have moved, in thousandths of the
	// arrivals, to be learned again. It is looked at after 100 arrivals
	// and then whenever their number has doubled.
	DriftMilli int64
	// HistoryTasks is for how many arrivals a long history counts, GuessTasks
	// for how many a short one or the general mix without any.
	HistoryTasks, GuessTasks int64
	// DemandShapes is how many shapes of task the demand tells apart at most; less
	// than 1 means 1. Where there are more, tasks are forgotten: of the larger of its
	// two samples, the prior and what arrived, as they are then, about half, by coins.
	DemandShapes int
}

// precision is how carefully waste is estimated: over so many random futures,
// each over after so many pairs of tasks in a row that did not fit, with free
// CPU rounded to so many steps of the largest node of a kind.
type precision struct {
	Streams  int
	Misses   int
	CPUSteps int64
}

// DefaultWeights are the defaults of every field.
func DefaultWeights() Weights {
	return Weights{
		GPUMilli: 400, MemoryMilli: 300, CPUMilli: 200, FragmentationMilli: 100,
		StepMilli: 20, Rough: precision{14, 9, 96}, Fine: precision{48, 12, 96}, MarginMilli: 40,
		ModelPriceMilli: 1000, ModelPriceCapMilli: 4000, SlotPriceMilli: 100, SlotFloorMilli: 30, DistancePriceMilli: 1000, RepriceEvery: 300, DriftMilli: 100,
		HistoryTasks: 3000, GuessTasks: 500, DemandShapes: 2048,
	}
}

// FastWeights are DefaultWeights with a coarser estimate of waste: several
// times faster on large clusters, a few tenths of a point less allocated.
func FastWeights() Weights {
	w := DefaultWeights()
	w.Rough, w.Fine, w.MarginMilli = precision{14, 5, 12}, precision{}, 0
	w.DriftMilli, w.RepriceEvery = 200, 800
	w.SlotPriceMilli, w.SlotFloorMilli = 35, 2000 // old prices must be no cliff
	return w
}
