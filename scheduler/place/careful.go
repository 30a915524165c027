package place

import "github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"

// Where tasks only come, nothing is known of what comes next, and what arrives lately is
// unlike what arrived in all, as where tasks come in the order of their size, prices are
// careful ([forecast.Pricing.Careful]): of what small tasks have broken by then, no room for
// large ones can be made.

// waryEvery is the number of arrivals between two looks whether prices must become more
// careful. That they need not be any more is seen when they are computed next.
const waryEvery = 32

// wariness is how careful prices have to be: 0, not at all, 1, careful, or careful and so many
// times as high.
func (p *Planner) wariness() int64 {
	switch {
	case p.taught || p.turnover.Lives:
		return 0
	case p.trend.Odd():
		return p.weights.OddPrices
	case p.trend.Unlike() && p.snap.MostlyFree(p.weights.EarlyMilli):
		return 1
	}
	return 0
}

// roomCPU is which part of its GPUs' share of the node's CPU room for several needs to count
// under careful prices, in thousandths: large tasks that are not known yet may need it.
const roomCPU = 900

// roomFor is how many GPUs of a pool so much CPU is enough for under careful prices.
func roomFor(b *cluster.Pool, cpu int64) uint8 {
	all := int64(len(b.GPUs))
	if b.Node.Spec.CPUMHz <= 0 {
		return uint8(all)
	}
	return uint8(min(all, max(0, cpu)*all*1000/(b.Node.Spec.CPUMHz*roomCPU)))
}
