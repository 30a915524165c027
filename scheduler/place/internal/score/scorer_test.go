package score

import (
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

func TestDividerIsExact(t *testing.T) {
	for _, by := range []int64{1, 3, 7, 10, 20, 999, 1000, 1 << 16, 1 << 20} {
		d := newDivider(by)
		for v := int64(-1 << 23); v < 1<<23; v += 997 {
			for _, x := range []int64{v, v / by * by, v/by*by - 1, v/by*by + 1} {
				if got, want := d.floor(x), floorDiv(x, by); got != want {
					t.Fatalf("⌊%d/%d⌋ = %d, want %d", x, by, got, want)
				}
			}
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
