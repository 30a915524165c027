package place

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
// than the rough one and the margin, so that the answer does not depend on what was
// asked before.
type balanced struct{}

func (balanced) sign() int64 { return 1 }

func (balanced) precision(p *Scorer) *wasteEstimator { return p.fine }

// complete leaves out the margin by which a fine estimate may be lower.
func (balanced) complete(p *Scorer, v *estimate, _ *cluster.Pool) {
	if p.fine != p.rough {
		v.roughWaste -= int32(p.weights.MarginMilli)
		v.known = rough
	}
}

// prefer is the waste that is expected then.
func (balanced) prefer(p *Scorer, b *cluster.Pool, index int, nd *fit.Need, cpu int64, ws *wasteEstimator) int32 {
	return p.idle(b, cpu, append(p.gpus[:0], index), nd, ws)
}

func (c balanced) score(p *Scorer, v *estimate, broken *forecast.PlaceCounts, sh *fit.Shape) int32 {
	cost := c.charged(p, v, sh)
	if broken != nil {
		cost += p.places.Cost(broken)
	}
	return int32(int64(v.usage) - p.steps.floor(cost)*p.perStep)
}

func (balanced) lost(p *Scorer, term int64, _ *cluster.Pool) int64 {
	return term * p.steps.by / stepTerm
}

// charged is the cost of a placement by BALANCED, in milli: by the fine estimate, or by the
// rough one less the margin where that is more or all that is known.
func (c balanced) charged(p *Scorer, v *estimate, sh *fit.Shape) int64 {
	cost := p.wasted(v, v.roughWaste, v.roughIdle)
	if v.known == fine {
		cost = max(cost, p.wasted(v, v.waste, v.after))
	}
	return cost + p.charges(v, sh)
}
