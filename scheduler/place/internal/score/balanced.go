// SPDX-License-Identifier: MPL-2.0

package score

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
// than the rough one and the margin, so that the answer does not depend on earlier
// questions.
type balanced struct{}

func (balanced) sign() int64 { return 1 }

func (balanced) precision(sc *Scorer) *WasteEstimator { return sc.Fine }

// complete leaves out the margin by which a fine estimate may be lower.
func (balanced) complete(sc *Scorer, v *Estimate, _ *cluster.Pool, _ int32) {
	if sc.Fine != sc.Rough {
		v.roughWaste -= int32(sc.weights.MarginMilli)
		v.known = rough
	}
}

// prefer is the waste that is expected then.
func (balanced) prefer(sc *Scorer, b *cluster.Pool, index int, nd *fit.Need, cpu int64, ws *WasteEstimator) int32 {
	return sc.idle(b, cpu, append(sc.gpus[:0], index), nd, ws)
}

func (c balanced) score(sc *Scorer, v *Estimate, broken *forecast.PlaceCounts, sh *fit.Shape) int32 {
	cost := c.charged(sc, v, sh)
	if broken != nil {
		cost += sc.Places.Cost(broken)
	}
	return int32(int64(v.usage) - floorDiv(cost, sc.Step)*sc.perStep)
}

func (balanced) lost(sc *Scorer, term, _ int64, _ *cluster.Pool) int64 {
	return term * sc.Step / stepTerm
}

// charged is the cost of a placement by BALANCED, in milli: by the fine estimate, or by the
// rough one less the margin where that is more or all that is known.
func (c balanced) charged(sc *Scorer, v *Estimate, sh *fit.Shape) int64 {
	cost := sc.wasted(v, v.roughWaste, v.roughIdle)
	if v.known == fine {
		cost = max(cost, sc.wasted(v, v.waste, v.after))
	}
	return cost + sc.charges(v, sh)
}
