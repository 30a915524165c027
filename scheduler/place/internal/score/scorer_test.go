// SPDX-License-Identifier: MPL-2.0

package score

import (
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// Steps of cost are rounded down, below zero too.
func TestStepsAreRoundedDown(t *testing.T) {
	for _, c := range []struct{ cost, step, want int64 }{{0, 20, 0}, {19, 20, 0}, {20, 20, 1}, {-1, 20, -1}, {-20, 20, -1}, {-21, 20, -2}, {7, 1, 7}} {
		if got := floorDiv(c.cost, c.step); got != c.want {
			t.Errorf("⌊%d/%d⌋ = %d, want %d", c.cost, c.step, got, c.want)
		}
	}
}

// Shares of a pool are kept in order, whatever comes.
func TestSharesAreKeptInOrder(t *testing.T) {
	for _, list := range [][]int32{{}, {5}, {1, 2, 3}, {3, 2, 1}, {2, 3, 1, 2}, {7, 7, 0, 7}} {
		var got []int32
		for _, v := range list {
			got = insertSorted(got, v)
		}
		if want := slices.Sorted(slices.Values(list)); !slices.Equal(got, want) {
			t.Errorf("%v becomes %v", list, got)
		}
	}
}

// Under careful prices a node whose CPU is in use has no room for several to lose.
func TestCarefulPricesCountCPU(t *testing.T) {
	pool := &cluster.Pool{Node: &cluster.NodeState{Spec: cluster.Node{CPUMHz: 80_000}}, GPUs: make([]cluster.GPUState, 8)}
	sc := &Scorer{Prices: &forecast.Prices{}}
	for cpu, want := range map[int64]uint8{80_000: 8, 72_000: 8, 71_999: 7, 45_000: 5, 8_999: 0, 0: 0, -1: 0} {
		if got := roomFor(pool, cpu); got != want {
			t.Errorf("%d MHz are room for %d GPUs, want %d", cpu, got, want)
		}
	}
	if got := roomFor(&cluster.Pool{Node: &cluster.NodeState{}, GPUs: make([]cluster.GPUState, 4)}, 0); got != 4 {
		t.Errorf("a node without CPU has room for %d GPUs, want 4", got)
	}
	if got := roomFor(&cluster.Pool{Node: &cluster.NodeState{Spec: cluster.Node{CPUMHz: 1}}, GPUs: make([]cluster.GPUState, 4)}, 0); got != 0 {
		t.Errorf("a node without CPU left has room for %d GPUs", got)
	}
	sc.Prices.Slots[5], sc.Prices.Slots[8] = 50, 80
	if got := sc.slots(8, 5); got != 80 {
		t.Errorf("eight GPUs with CPU for five are worth %d, want 80", got)
	}
	sc.Prices.Careful = true
	if got := sc.slots(8, 5); got != 50 {
		t.Errorf("under careful prices they are worth %d, want 50", got)
	}
	if got := sc.slots(5, 8); got != 50 {
		t.Errorf("five GPUs with CPU for eight are worth %d, want 50", got)
	}
}

// Room for several counts on every kind of GPU, the first one too, and is nothing where there is none.
func TestRoomForSeveralCountsOnEveryKind(t *testing.T) {
	sc := &Scorer{Prices: &forecast.Prices{}}
	sc.Prices.Slots[5], sc.Prices.Slots[8] = 50, 80
	for kind, want := range map[int32]int64{-1: 7, 0: 37, 1: 37} {
		if got := sc.wasted(&Estimate{kind: kind, before: 8, roomBefore: 8, roomAfter: 8}, 7, 5); got != want {
			t.Errorf("kind %d: %d wasted, want %d", kind, got, want)
		}
	}
}

func TestUtilizationIsAPart(t *testing.T) {
	for _, c := range []struct{ capacity, free, want int64 }{{0, 0, 0}, {-1, 0, 0}, {1, 0, 1000}, {4000, 1000, 750}, {4000, 4000, 0}, {4000, -1, 1000}, {4000, 5000, 0}, {3, 2, 333}} {
		if got := usedMilli(c.capacity, c.free); got != c.want {
			t.Errorf("%d free of %d are %d used, want %d", c.free, c.capacity, got, c.want)
		}
	}
	for _, c := range []struct{ part, want int64 }{{0, 1000}, {500, 700}, {1000, 400}} {
		if got := blend(1000, 400, c.part); got != c.want {
			t.Errorf("1000 allocated and 400 measured are %d at %d, want %d", got, c.part, c.want)
		}
	}
}

// A model that others need is charged for what is taken of it; where no GPU is taken nothing is.
func TestModelsAreChargedByWhatIsTaken(t *testing.T) {
	s := newScene(t, 31, false, DefaultWeights(), "1")
	kind := s.snap.Nodes["n0"].Pools[0].Kind
	s.scorer.Prices = &forecast.Prices{Model: make([]int64, len(s.snap.Kinds))}
	s.scorer.Prices.Model[kind] = 2
	for text, want := range map[string]int64{"4": 8, "0.5": 1, "": 0} {
		if got := s.scorer.ModelPrice(fit.NewShape(s.request(text), s.snap), kind); got != want {
			t.Errorf("%q costs %d of the model, want %d", text, got, want)
		}
	}
	if got := s.scorer.ModelPrice(fit.NewShape(s.request(""), s.snap), -1); got != 0 {
		t.Errorf("a task without GPUs costs %d of a node without", got)
	}
}
