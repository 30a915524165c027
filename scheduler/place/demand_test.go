package place

import (
	"fmt"
	"math"
	"testing"
)

// modest returns a planner whose demand tells few shapes apart.
func modest(t *testing.T, shapes int) *Planner {
	t.Helper()
	p := testPlanner(t, testNode("a", "A100", 8), testNode("b", "V100", 4))
	p.weights.DemandShapes = shapes
	return p
}

// Half of the arrivals are of one shape. The others are of a shape each, in turns
// with a GPU and without.
func TestDemandOfManyShapesIsASample(t *testing.T) {
	const shapes = 256
	p, twin := modest(t, shapes), modest(t, shapes)
	usual := ask(t, "usual", "8G")
	for i := range 20000 {
		r := usual
		if i%2 == 1 {
			r = Request{GPUs: i / 2 % 2, Whole: i/2%2 == 1, CPUMHz: int64(1 + i)}
		}
		p.Arrive(&r)
		twin.Arrive(&r)
		if len(p.demand.entries) > shapes {
			t.Fatalf("after %d arrivals the demand holds %d shapes, at most %d are meant", i+1, len(p.demand.entries), shapes)
		}
		if most := 2*shapes*9/8 + forgetAtLeast; len(p.shapes) > most {
			t.Fatalf("after %d arrivals %d shapes are known, at most %d are meant", i+1, len(p.shapes), most)
		}
	}
	weights, sum, usuals, hosts := p.demand.weights(), 0.0, 0.0, 0.0
	for i, e := range p.demand.entries {
		sum += weights[i]
		switch {
		case e.shape == p.shapeOf(&usual):
			usuals += weights[i]
		case e.shape.req.GPUs == 0:
			hosts += weights[i]
		}
		if e.shape.entry != i || p.shapes[keyOf(&e.shape.req)] != e.shape {
			t.Errorf("entry %d is of a shape that takes %d for its entry, or another is known for the same requests", i, e.shape.entry)
		}
		if other := twin.demand.entries[i]; other.tasks != e.tasks || keyOf(&other.shape.req) != keyOf(&e.shape.req) {
			t.Errorf("entry %d: the same arrivals leave %v of %+v and %v of %+v", i, e.tasks, e.shape.req, other.tasks, other.shape.req)
		}
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Errorf("the weights sum up to %v, want 1", sum)
	}
	if math.Abs(usuals-0.5) > 0.1 || math.Abs(hosts-0.25) > 0.1 {
		t.Errorf("%.2f of the demand is usual and %.2f CPU-only, want 0.50 and 0.25", usuals, hosts)
	}
}

// A history of more shapes than are told apart counts for as many arrivals as any
// other, and what arrives does not use it up.
func TestHistoryOfManyShapesIsASample(t *testing.T) {
	p := modest(t, 256)
	history := make([]Request, 10000)
	for i := range history {
		history[i] = Request{CPUMHz: int64(1 + i), GPUs: i / 5000, Whole: i >= 5000}
	}
	p.Learn(history)
	r := ask(t, "usual", "8G")
	for i := range int64(3000) {
		r.CPUMHz = 20000 + i
		p.Arrive(&r)
	}
	var parts [2]float64 // of the demand, by GPUs
	weights := p.demand.weights()
	for i, e := range p.demand.entries {
		if e.tasks[prior] > 0 {
			parts[e.shape.req.GPUs] += weights[i]
		}
	}
	if math.Abs(parts[0]-0.25) > 0.1 || math.Abs(parts[0]+parts[1]-0.5) > 0.01 {
		t.Errorf("the first half of the history is %.2f of the demand and the second %.2f, want 0.25 each", parts[0], parts[1])
	}
}

// What runs does not depend on its shape being known: it can end, be evicted in
// thought and be moved after the shape was forgotten.
func TestWorkOfForgottenShapesEnds(t *testing.T) {
	w := newWorld(t, 3, true)
	w.plan.weights.DemandShapes = 16
	of := map[string]shapeKey{} // by usage
	for range 1000 {
		r := w.request()
		w.plan.Arrive(&r)
		pl, err := w.plan.Place(&r)
		if err != nil {
			w.release()
			continue
		}
		of[r.ID] = keyOf(&w.plan.shapeOf(&r).req)
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
		if n := w.snap.nodes[id]; n.cpu != n.spec.CPUMHz || n.memory != n.spec.MemoryMiB {
			t.Errorf("node %s has %d MHz and %d MiB free of %d and %d", id, n.cpu, n.memory, n.spec.CPUMHz, n.spec.MemoryMiB)
		}
	}
}

// Requests that are only asked about are known for a while and leave the demand
// as it is.
func TestQuestionsLeaveTheDemandAlone(t *testing.T) {
	p := modest(t, 64)
	r := ask(t, "task", "8G")
	p.Arrive(&r)
	before := fmt.Sprint(p.demand.weights())
	for i := range 1000 {
		r.CPUMHz = int64(10 + i)
		if _, err := p.Place(&r); err != nil {
			t.Fatal(err)
		}
	}
	if after := fmt.Sprint(p.demand.weights()); after != before {
		t.Errorf("the demand is %s, before it was asked %s", after, before)
	}
	if most := 2*64*9/8 + forgetAtLeast; len(p.shapes) > most {
		t.Errorf("%d shapes are known, at most %d are meant", len(p.shapes), most)
	}
}
