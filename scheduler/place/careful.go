package place

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
	case p.taught || p.scorer.Turnover.Lives:
		return 0
	case p.trend.Odd():
		return p.weights.OddPrices
	case p.trend.Unlike() && p.snap.MostlyFree(p.weights.EarlyMilli):
		return 1
	}
	return 0
}
