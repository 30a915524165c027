// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// modest returns a planner whose demand tells few shapes apart.
func modest(t *testing.T, shapes int) *Planner {
	t.Helper()
	p := testPlanner(t, testNode("a", "A100", 8), testNode("b", "V100", 4))
	p.weights.DemandShapes = shapes
	return p
}

// knownAtMost is how many shapes a planner knows whose demand tells so many apart.
func knownAtMost(shapes int) int { return 2*shapes*9/8 + forgetAtLeast }

// A planner knows at most so many shapes, however many arrive, and another one that
// saw the same the same ones.
func TestShapesOfADemandAreBounded(t *testing.T) {
	const shapes = 256
	p := modest(t, shapes)
	usual := ask(t, "usual", "8G")
	for i := range 20000 {
		r := usual
		if i%2 == 1 {
			r = Request{GPUs: i / 2 % 2, Whole: i/2%2 == 1, CPUMHz: int64(1 + i)}
		}
		p.Arrive(&r)
		if p.demand.Shapes() > shapes || len(p.shapes) > knownAtMost(shapes) {
			t.Fatalf("after %d arrivals the demand holds %d shapes and %d are known, at most %d and %d are meant", i+1, p.demand.Shapes(), len(p.shapes), shapes, knownAtMost(shapes))
		}
	}
	p.Learn(append(distinct(5000, 0, 1), distinct(5000, 1, 1)...))
	if most := knownAtMost(shapes); len(p.shapes) > most {
		t.Errorf("after a history %d shapes are known, at most %d are meant", len(p.shapes), most)
	}
}

// distinct returns tasks that ask for so many GPUs and each for other CPU, from
// some amount on.
func distinct(count, gpus int, cpu int64) []Request {
	tasks := make([]Request, count)
	for i := range tasks {
		tasks[i] = Request{GPUs: gpus, Whole: gpus > 0, CPUMHz: cpu + int64(i)}
	}
	return tasks
}

// A demand that should tell no shapes apart tells one.
func TestDemandHoldsAShape(t *testing.T) {
	for _, shapes := range []int{0, -1} {
		w := DefaultWeights()
		w.DemandShapes = shapes
		p := NewPlanner(testPlanner(t, testNode("a", "A100", 8)).snap, PolicyBalanced, w)
		r := ask(t, "usual", "8G")
		for range 100 {
			p.Arrive(&r)
		}
		if p.demand.Shapes() != 1 {
			t.Errorf("DemandShapes %d: %d shapes are told apart", shapes, p.demand.Shapes())
		}
	}
}

// What runs does not depend on its shape being known: it can end, be evicted in
// thought and be moved after the shape was forgotten.
func TestWorkOfForgottenShapesEnds(t *testing.T) {
	w := newWorld(t, 3, true)
	w.plan.weights.DemandShapes = 16
	of := map[string]fit.ShapeKey{} // by usage
	for range 1000 {
		r := w.request()
		w.plan.Arrive(&r)
		pl, err := w.plan.Place(&r)
		if err != nil {
			w.release()
			continue
		}
		of[r.ID] = fit.KeyOf(&w.plan.shapeOf(&r).Req)
		w.apply(pl.Usage)
	}
	forgotten := 0
	for _, id := range w.usages {
		if w.plan.shapes[of[id]] == nil {
			forgotten++
		}
	}
	if forgotten == 0 {
		t.Fatalf("the shapes of all %d tasks that run are known", len(w.usages))
	}
	for range 50 {
		w.preempt()
		w.rebalance()
		w.gang()
		w.check(false)
	}
	for len(w.usages) > 0 {
		w.release()
		w.check(false)
	}
	for _, id := range w.nodes {
		if n := w.snap.Nodes[id]; n.CPU != n.Spec.CPUMHz || n.Memory != n.Spec.MemoryMiB {
			t.Errorf("node %s has %d MHz and %d MiB free of %d and %d", id, n.CPU, n.Memory, n.Spec.CPUMHz, n.Spec.MemoryMiB)
		}
	}
}

// Requests that are only asked about are known for a while and leave the demand
// as it is.
func TestQuestionsLeaveTheDemandAlone(t *testing.T) {
	p := modest(t, 64)
	r := ask(t, "task", "8G")
	p.Arrive(&r)
	before := fmt.Sprint(p.demand.Weights())
	for i := range 1000 {
		r.CPUMHz = int64(10 + i)
		if _, err := p.Place(&r); err != nil {
			t.Fatal(err)
		}
	}
	if after := fmt.Sprint(p.demand.Weights()); after != before {
		t.Errorf("the demand is %s, before it was asked %s", after, before)
	}
	if most := knownAtMost(64); len(p.shapes) > most {
		t.Errorf("%d shapes are known, at most %d are meant", len(p.shapes), most)
	}
}

// While there are few shapes, one that is no longer asked about stays known.
func TestFewShapesStayKnown(t *testing.T) {
	p := modest(t, 128)
	r := ask(t, "task", "8G")
	known := p.shapeOf(&r)
	for _, other := range distinct(200, 0, 1) {
		p.shapeOf(&other)
	}
	if len(p.shapes) >= 2*128 {
		t.Fatalf("%d shapes are many", len(p.shapes))
	}
	if p.shapeOf(&r) != known {
		t.Error("a shape was forgotten")
	}
}

// What arrives as expected teaches nothing; what does not is learned.
func TestDemandIsLearnedWhenItMoved(t *testing.T) {
	for _, c := range []struct {
		name    string
		gpus    int
		lessons int // the guess, the history and these
	}{
		{"stable", 0, 2},
		{"moved", 1, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testPlanner(t, testNode("a", "A100", 8))
			p.Learn(distinct(forecast.FirstReview, 0, 1))
			for _, r := range distinct(forecast.FirstReview, c.gpus, 1) {
				p.Arrive(&r)
			}
			if p.scorer.Lessons != c.lessons {
				t.Errorf("the demand was learned %d times, want %d", p.scorer.Lessons, c.lessons)
			}
		})
	}
}

// What asks for memory or turns counts by how much of a GPU that is, also on GPUs that
// come later.
func TestDemandCountsMemoryAsGPU(t *testing.T) {
	p := testPlanner(t, testNode("a", "A100", 8))
	memory, compute, whole := ask(t, "m", "8G"), ask(t, "c", "8G,0.5"), ask(t, "w", "2")
	for _, c := range []struct {
		r    *Request
		want int64
	}{{&memory, 100}, {&compute, 500}, {&whole, 2000}} {
		if got := p.shapeOf(c.r).Demand.Milli; got != c.want {
			t.Errorf("%s counts as %d milli, want %d", c.r.ID, got, c.want)
		}
	}
	small := testNode("b", "T4", 8)
	for i := range small.GPUs {
		small.GPUs[i].MemoryMiB, small.GPUs[i].Slices = 16<<10, 16
	}
	if err := p.snap.AddNode(small); err != nil {
		t.Fatal(err)
	}
	p.Arrive(&memory)
	if _, err := p.Place(&memory); err != nil {
		t.Fatal(err)
	}
	if got, want := p.shapeOf(&memory).Demand.Milli, int64((100+500)/2); got != want {
		t.Errorf("with smaller GPUs as well, 8G counts as %d milli, want %d", got, want)
	}
}
