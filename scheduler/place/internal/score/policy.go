// SPDX-License-Identifier: MPL-2.0

package score

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/ranking"
)

// policy is what "best" means. Each is a value in a file of its own, which says its
// formula; amounts are in thousandths and describe the node after the placement:
//
//	gpu            (compute/capacity + GPU memory/capacity) / 2 of the pool
//	memory, cpu    allocated/capacity of the host
//	fragmentation  what the placement breaks for later work, as each policy sees it
type policy interface {
	// sign is how utilization counts: 1 where the fullest is best, −1 where the
	// emptiest is.
	sign() int64
	// precision is the estimate of waste that decides.
	precision(sc *Scorer) *WasteEstimator
	// complete adds to a rough estimate of a placement on a pool what the policy
	// wants to know; heat is the part of its waste that is the price of hot GPUs.
	complete(sc *Scorer, v *Estimate, b *cluster.Pool, heat int32)
	// prefer ranks a GPU of a pool for a task that takes its need of it and leaves
	// the node that much CPU; the least wins.
	prefer(sc *Scorer, b *cluster.Pool, index int, nd *fit.Need, cpu int64, ws *WasteEstimator) int32
	// score is that of a placement, at the current prices; broken is the room for
	// several GPUs that it takes away, nil where nothing is known.
	score(sc *Scorer, v *Estimate, broken *forecast.PlaceCounts, sh *fit.Shape) int32
	// lost is the last term of that score, on a pool, as what the placement takes from later
	// work, and from its neighbors on hot GPUs: in thousandths of a GPU.
	lost(sc *Scorer, term, heat int64, b *cluster.Pool) int64
}

// Worst is the points of a pool that cannot take the task.
const Worst = ranking.Absent

// Estimate is what a shape's placement on a pool does, apart from prices.
type Estimate struct {
	roughWaste int32     // waste added by the rough estimate less the margin, milli
	waste      int32     // waste added, milli; negative: healed
	kind       int32     // of the pool
	usage      int16     // weighted utilization terms after placement, 0..1000
	left       int16     // of the node after placement, in thousandths of the largest
	stranded   int16     // weighted fragmentation term of PACK and SPREAD, and the price of hot GPUs
	before     uint8     // idle GPUs of the pool before
	after      uint8     // and after
	roughIdle  uint8     // and after by the rough estimate
	roomBefore uint8     // GPUs of the pool that its CPU before is enough for, under careful prices
	roomAfter  uint8     // and after
	known      precision // so far
}

// precision is how much of an estimate is known.
type precision uint8

const (
	rough precision = iota // waste and after are not known yet
	fine
)
