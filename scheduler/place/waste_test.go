// SPDX-License-Identifier: MPL-2.0

package place

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
)

// What is too little for any task is lost, whatever else a node has free, and
// does not make another state of it.
func TestUselessSharesAreLost(t *testing.T) {
	p := testPlanner(t, testNode("a", "A100", 4))
	p.Learn([]Request{ask(t, "half", "0.5"), ask(t, "quarter", "0.25"), ask(t, "whole", "1")})
	const least = 250 // the smallest of the tasks
	for _, c := range []struct {
		cpu           int64
		shares, alike []int32
		lost          int32
	}{
		{64000, []int32{0, 500, 1000}, []int32{500, 1000}, 0},
		{64000, []int32{40, least - 1, 500, 1000}, []int32{500, 1000}, 40 + least - 1},
		{64000, []int32{40, 40}, nil, 80},
		{0, []int32{40, 500, 1000}, []int32{500, 1000}, 40},
	} {
		p.relearn() // forgets what other rows made known
		key := func(shares []int32) forecast.StateKey {
			k := p.scorer.Fine.Key(0, c.cpu)
			for _, s := range shares {
				k = k.Plus(forecast.KeyOfShare(s))
			}
			return k
		}
		got := p.scorer.Fine.Estimate(key(c.shares), 0, c.cpu, c.shares)
		if _, ok := p.scorer.Fine.Known(key(c.alike)); !ok {
			t.Errorf("%d MHz: after %v, %v is not known", c.cpu, c.shares, c.alike)
		}
		p.relearn()
		if alone := p.scorer.Fine.Estimate(key(c.alike), 0, c.cpu, c.alike); got != alone+c.lost {
			t.Errorf("%d MHz and %v: %d milli are wasted, want %d more than of %v, %d", c.cpu, c.shares, got, c.lost, c.alike, alone)
		}
	}
}
