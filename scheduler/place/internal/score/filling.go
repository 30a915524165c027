// SPDX-License-Identifier: MPL-2.0

package score

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// filling is the policies PACK, the fullest node and GPU first, and SPREAD, the
// emptiest:
//
//	PACK    score =  gpu·GPU + memory·Memory + cpu·CPU − fragmentation·Fragmentation − heat
//	SPREAD  score = −gpu·GPU − memory·Memory − cpu·CPU − fragmentation·Fragmentation − heat
//
// fragmentation is the part of the pool's GPUs, 0 to 1, that is expected to stay
// idle for good ([forecast.Waste]), and heat the price of hot GPUs: a quarter of a GPU
// that they do not have outweighs the other terms.
type filling struct{ signed int32 }

func (f filling) sign() int64 { return int64(f.signed) }

func (filling) precision(sc *Scorer) *WasteEstimator { return sc.Rough }

func (f filling) complete(sc *Scorer, v *Estimate, b *cluster.Pool, heat int32) {
	v.stranded = f.stranded(sc, v.waste-heat, b) + int16(min(heat, mostHeat))
}

// mostHeat bounds the points that hot GPUs cost: far more than all that speaks for a node.
const mostHeat = 16000

func (f filling) prefer(_ *Scorer, b *cluster.Pool, index int, _ *fit.Need, _ int64, _ *WasteEstimator) int32 {
	return f.signed * b.GPUs[index].Share
}

func (f filling) score(_ *Scorer, v *Estimate, _ *forecast.PlaceCounts, _ *fit.Shape) int32 {
	return f.signed*int32(v.usage) - int32(v.stranded)
}

func (filling) lost(sc *Scorer, term, heat int64, b *cluster.Pool) int64 {
	if weight := sc.weights.FragmentationMilli; weight > 0 {
		term -= min(heat, mostHeat) * 1000 / weight
	}
	return term*int64(len(b.GPUs)) + heat
}

// stranded is the weighted fragmentation term: the part of
// the pool that is expected to stay idle for good after so much more is wasted.
func (filling) stranded(sc *Scorer, waste int32, b *cluster.Pool) int16 {
	part := int64(sc.WasteNow(b, sc.Rough)+waste) / int64(len(b.GPUs))
	return int16(sc.weights.FragmentationMilli * min(max(part, 0), 1000) / 1000)
}
