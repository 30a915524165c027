package score

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// filling is the policies PACK, the fullest node and GPU first, and SPREAD, the
// emptiest:
//
//	PACK    score =  gpu·GPU + memory·Memory + cpu·CPU − fragmentation·Fragmentation
//	SPREAD  score = −gpu·GPU − memory·Memory − cpu·CPU − fragmentation·Fragmentation
//
// fragmentation is the part of the pool's GPUs, 0 to 1, that is expected to stay
// idle for good ([forecast.Waste]).
type filling struct{ signed int32 }

func (f filling) sign() int64 { return int64(f.signed) }

func (filling) precision(sc *Scorer) *WasteEstimator { return sc.Rough }

func (f filling) complete(sc *Scorer, v *Estimate, b *cluster.Pool) {
	v.stranded = f.stranded(sc, v.waste, b)
}

func (f filling) prefer(_ *Scorer, b *cluster.Pool, index int, _ *fit.Need, _ int64, _ *WasteEstimator) int32 {
	return f.signed * b.GPUs[index].Share
}

func (f filling) score(_ *Scorer, v *Estimate, _ *forecast.PlaceCounts, _ *fit.Shape) int32 {
	return f.signed*int32(v.usage) - int32(v.stranded)
}

func (filling) lost(_ *Scorer, term int64, b *cluster.Pool) int64 { return term * int64(len(b.GPUs)) }

// stranded is the weighted fragmentation term: the part of
// the pool that is expected to stay idle for good after so much more is wasted.
func (filling) stranded(sc *Scorer, waste int32, b *cluster.Pool) int16 {
	part := int64(sc.WasteNow(b, sc.Rough)+waste) / int64(len(b.GPUs))
	return int16(sc.weights.FragmentationMilli * min(max(part, 0), 1000) / 1000)
}
