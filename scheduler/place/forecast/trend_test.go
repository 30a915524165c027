// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"math/rand/v2"
	"testing"
)

func TestTrend(t *testing.T) {
	type size struct {
		gpus  int
		milli int64
	}
	mix := []size{{0, 0}, {1, 250}, {1, 500}, {1, 1000}, {1, 1000}, {2, 1000}, {4, 1000}, {8, 1000}}
	for name, c := range map[string]struct {
		at     func(i int, rng *rand.Rand) size
		odd    bool
		unlike bool
		n      int
		hope   float64 // tasks of each size that are assumed
	}{
		"too few":                        {func(int, *rand.Rand) size { return size{1, 1000} }, false, false, 100, 60},
		"as assumed, and at random":      {func(_ int, rng *rand.Rand) size { return mix[rng.IntN(len(mix))] }, false, false, 2000, 60},
		"whole GPUs, as all are":         {func(int, *rand.Rand) size { return size{1, 1000} }, false, false, 5000, 0},
		"whole GPUs, unlike what was":    {func(int, *rand.Rand) size { return size{1, 1000} }, true, true, 300, 60},
		"parts of GPUs, unlike what was": {func(int, *rand.Rand) size { return size{1, 990} }, false, true, 300, 60},
		"two GPUs, unlike what was":      {func(int, *rand.Rand) size { return size{2, 1000} }, false, true, 300, 60},
		"ascending, up to one whole GPU": {func(i int, _ *rand.Rand) size { return mix[i*5/2000] }, true, true, 2000, 60},
		"ascending, all":                 {func(i int, _ *rand.Rand) size { return mix[i*len(mix)/2000] }, false, true, 2000, 60},
		"from nearly a GPU to a whole":   {func(i int, _ *rand.Rand) size { return []size{{1, 990}, {1, 1000}}[i/1000] }, true, true, 2000, 0},
		"a third of it whole, from parts": {func(i int, _ *rand.Rand) size {
			return []size{{1, 500}, []size{{1, 1000}, {1, 500}, {1, 500}}[i%3]}[i/1000]
		}, false, false, 2000, 0},
		"from two whole GPUs down to one":  {func(i int, _ *rand.Rand) size { return []size{{2, 1000}, {1, 1000}}[i/1000] }, true, true, 2000, 0},
		"from none and one to one, slowly": {func(i int, _ *rand.Rand) size { return []size{{0, 0}, {1, 1000}}[min(1, i/1800)] }, true, true, 2100, 0},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		var trend Trend
		for _, s := range mix {
			trend.Expect(s.gpus, s.milli, c.hope)
		}
		for i := range c.n {
			s := c.at(i, rng)
			trend.Arrive(s.gpus, s.milli)
		}
		if trend.Odd() != c.odd || trend.Unlike() != c.unlike {
			t.Errorf("%s: odd is %v, unlike %v", name, trend.Odd(), trend.Unlike())
		}
	}
}
