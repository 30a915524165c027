// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// roomy is a node of eight sliced GPUs with 80 GHz and 800 GiB.
func roomy(id string) Node {
	n := Node{ID: id, CPUMHz: 80_000, MemoryMiB: 800 << 10}
	for i := range 8 {
		n.GPUs = append(n.GPUs, GPU{
			ID: fmt.Sprint(id, i), Model: "A100", Type: "A100", Mode: gpu.ModeSlice, MemoryMiB: 1000, SliceMiB: 1, Slices: 1000,
			MeasuredMilli: Unmeasured, MeasuredMemoryMiB: Unmeasured,
		})
	}
	return n
}

// livePlanner plans for so many roomy nodes, where a tenth of the tasks want
// eight GPUs and the others one.
func livePlanner(t *testing.T, nodes int) *Planner {
	t.Helper()
	s := NewSnapshot()
	for i := range nodes {
		if err := s.AddNode(roomy(fmt.Sprintf("n%02d", i))); err != nil {
			t.Fatal(err)
		}
	}
	p := NewPlanner(s, PolicyBalanced, DefaultWeights())
	history := []Request{{GPUs: 8, Whole: true, CPUMHz: 40_000, MemoryMiB: 400 << 10}}
	for range 9 {
		history = append(history, Request{GPUs: 1, Whole: true, CPUMHz: 5_000, MemoryMiB: 1024})
	}
	p.Learn(history)
	return p
}

func placed(t *testing.T, p *Planner, r Request) Placement {
	t.Helper()
	pl, err := p.Place(&r)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.snap.Apply(pl.Usage); err != nil {
		t.Fatal(err)
	}
	return pl
}

// Where tasks end, prices are computed again after fewer arrivals, and changes, than in a
// cluster that only fills up, unless the cluster is large.
func TestPricesAreComputedMoreOftenWhereTasksEnd(t *testing.T) {
	w := DefaultWeights()
	for _, c := range []struct {
		nodes int
		lives bool
		want  int64
	}{{2, false, w.RepriceEvery}, {1200, true, w.LiveRepriceEvery}, {2400, false, 2 * w.RepriceEvery}, {2400, true, 2 * w.RepriceEvery}} {
		p := livePlanner(t, c.nodes)
		if c.lives {
			p.ExpectEnds(1)
		}
		if p.nextPrice != c.want || p.stalePrice != p.snap.Each.Log.End()+changesPerArrival*c.want {
			t.Errorf("%+v: prices are computed again after %d arrivals or %d changes", c, p.nextPrice, p.stalePrice-p.snap.Each.Log.End())
		}
	}
}

// Two nodes, one of which is broken already: in a cluster that lives a task that
// CPU alone would let go anywhere keeps away from the whole one.
func TestPlacesAreKeptWhereTasksEnd(t *testing.T) {
	p := livePlanner(t, 2)
	p.ExpectEnds(1)
	if !p.scorer.Turnover.Lives || p.scorer.Places.Price[0] <= 0 {
		t.Fatalf("turnover %+v, price %d", p.scorer.Turnover, p.scorer.Places.Price[0])
	}
	first := placed(t, p, Request{ID: "one", GPUs: 1, Whole: true, CPUMHz: 5_000})
	for i := range 7 {
		r := Request{ID: fmt.Sprint("more", i), GPUs: 1, Whole: true, CPUMHz: 5_000}
		if got := placed(t, p, r); got.NodeID != first.NodeID {
			t.Fatalf("task %d goes to %s, and breaks its place for eight", i, got.NodeID)
		}
	}
	if got := placed(t, p, Request{ID: "cpu", CPUMHz: 40_000}); got.NodeID != first.NodeID {
		t.Errorf("a CPU-only task takes the CPU of a place for eight on %s", got.NodeID)
	}
}

// Three quarters of the CPU and a quarter of the GPUs of one of two nodes are in
// use, CPU is what is short, and CPU-only work joins it there.
func TestCPUStaysInLargePieces(t *testing.T) {
	p := livePlanner(t, 2)
	placed(t, p, Request{ID: "a", GPUs: 2, Whole: true, CPUMHz: 60_000})
	if got := p.snap.CPUPerGPU(); got != 3 {
		t.Fatalf("CPU per GPU in use %g, want 3", got)
	}
	sh, used, empty := p.shapeOf(&Request{CPUMHz: 8_000}), p.snap.Pools[0], p.snap.Pools[1]
	if used.Node.CPU > empty.Node.CPU {
		used, empty = empty, used
	}
	if a, b := p.scorer.Left(sh.Shape, used), p.scorer.Left(sh.Shape, empty); a != 800*12/80+150 || b != 800*72/80+200 {
		t.Errorf("left %d and %d", a, b)
	}
	p.ExpectEnds(1)
	if p.scorer.Prices.Spare != 20 {
		t.Fatalf("price %d, want %d", p.scorer.Prices.Spare, 20)
	}
	if got := placed(t, p, Request{ID: "cpu", CPUMHz: 8_000}); got.NodeID != used.Node.Spec.ID {
		t.Errorf("it goes to %s", got.NodeID)
	}
}

// What was priced before the cluster changed is priced again, without an arrival.
func TestPricesFollowTheSnapshot(t *testing.T) {
	p := livePlanner(t, 2)
	p.ExpectEnds(1)
	before := p.scorer.Places.Price[0]
	for i := range 8 {
		u := Usage{ID: fmt.Sprint("u", i), NodeID: "n00", CPUMHz: 1000, Takes: []Take{{GPU: i, Milli: 1000, Slices: 1000}}}
		if err := p.snap.Apply(u); err != nil {
			t.Fatal(err)
		}
	}
	for i := range changesPerArrival * 300 / 2 {
		u := Usage{ID: fmt.Sprint("x", i), NodeID: "n01", CPUMHz: 1}
		if err := p.snap.Apply(u); err != nil {
			t.Fatal(err)
		}
		if _, err := p.snap.Release(u.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Place(&Request{ID: "r", CPUMHz: 1}); err != nil || p.scorer.Places.Price[0] == before {
		t.Errorf("price %d as before, %v", before, err)
	}
}

// How far the futures of waste are played depends on whether tasks end, and in a
// cluster that fills up on whether anything is small.
func TestPrecisionFollowsTheCluster(t *testing.T) {
	w := DefaultWeights()
	p := livePlanner(t, 2)
	if p.scorer.Fine.Precision != w.Fine || p.scorer.Rough.Precision != w.Rough || p.scorer.Step != w.StepMilli {
		t.Errorf("a cluster that fills up is estimated with %+v in steps of %d", p.scorer.Fine.Precision, p.scorer.Step)
	}
	p.Learn([]Request{ask(t, "a", "0.5"), ask(t, "b", "0.3")})
	if p.scorer.Fine.Misses != w.CoarseMisses || p.scorer.Rough.Misses != w.CoarseMisses || p.scorer.Step != w.CoarseStepMilli {
		t.Errorf("coarse shares are estimated with %+v in steps of %d", p.scorer.Fine.Precision, p.scorer.Step)
	}
	p.ExpectEnds(1)
	if p.scorer.Fine.Misses != w.CoarseLiveMisses || p.scorer.Rough.Misses != w.CoarseLiveMisses || p.scorer.Fine.Streams != w.LiveFine.Streams || p.scorer.Step != w.StepMilli {
		t.Errorf("coarse shares in a cluster that lives are estimated with %+v in steps of %d", p.scorer.Fine.Precision, p.scorer.Step)
	}
	p.Learn([]Request{ask(t, "a", "0.5"), ask(t, "b", "0.1")})
	if p.scorer.Fine.Precision != w.LiveFine || p.scorer.Rough.Precision != w.LiveRough || p.scorer.Step != w.StepMilli {
		t.Errorf("a cluster that lives is estimated with %+v in steps of %d", p.scorer.Fine.Precision, p.scorer.Step)
	}
	for p.scorer.Turnover.Rate > 0.005 {
		p.Started()
	}
	p.recompute()
	if p.scorer.Fine.Precision != w.Fine || p.scorer.Step != w.StepMilli {
		t.Errorf("a cluster that lives no longer is estimated with %+v in steps of %d", p.scorer.Fine.Precision, p.scorer.Step)
	}
}

// Without a history, futures of a cluster that lives are short until enough tasks have come
// that some take little of a GPU.
func TestPrecisionWithoutHistory(t *testing.T) {
	w := DefaultWeights()
	p := NewPlanner(livePlanner(t, 2).snap, PolicyBalanced, w)
	p.ExpectEnds(1)
	large, small := ask(t, "a", "0.5"), ask(t, "b", "0.1")
	for i := range 1600 {
		if p.scorer.Fine.Misses != w.CoarseLiveMisses {
			t.Fatalf("estimated with %+v after %d arrivals", p.scorer.Fine.Precision, i)
		}
		if i%50 == 0 {
			p.Arrive(&small)
		} else {
			p.Arrive(&large)
		}
	}
	if p.scorer.Fine.Precision != w.LiveFine || p.scorer.Rough.Precision != w.LiveRough {
		t.Errorf("estimated with %+v, want %+v", p.scorer.Fine.Precision, w.LiveFine)
	}
}
