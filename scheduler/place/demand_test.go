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

// knownAtMost is how many shapes a planner knows whose demand tells so many apart.
func knownAtMost(shapes int) int { return 2*shapes*9/8 + forgetAtLeast }

// distinct returns tasks that ask for so many GPUs and each for other CPU, from
// some amount on.
func distinct(count, gpus int, cpu int64) []Request {
	tasks := make([]Request, count)
	for i := range tasks {
		tasks[i] = Request{GPUs: gpus, Whole: gpus > 0, CPUMHz: cpu + int64(i)}
	}
	return tasks
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
		if most := knownAtMost(shapes); len(p.shapes) > most {
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

// What has arrived first counts as much as what arrives later, however often the
// sample was thinned in between.
func TestDemandOfManyShapesForgetsEvenly(t *testing.T) {
	const first = 10000
	p := modest(t, 256)
	for _, r := range distinct(first, 0, 1) {
		p.Arrive(&r)
	}
	for i, r := range distinct(2*first, 1, 1) {
		p.Arrive(&r)
		if i%1000 != 999 {
			continue
		}
		old := int64(0)
		for _, e := range p.demand.entries {
			if e.shape.req.GPUs == 0 {
				old += e.tasks[seen]
			}
		}
		got, want := float64(old)/float64(p.demand.tasks[seen]), first/float64(first+i+1)
		if math.Abs(got-want) > 0.15 {
			t.Errorf("after %d other arrivals the first %d are %.2f of the sample, want %.2f", i+1, first, got, want)
		}
	}
}

// Shapes of which no task is left make way before any task is forgotten.
func TestEmptyEntriesGoFirst(t *testing.T) {
	p := modest(t, 64)
	p.Learn(distinct(60, 0, 1))
	p.Learn(distinct(60, 1, 1))
	if got := p.demand.tasks[prior]; got != 60 {
		t.Errorf("%d tasks of a history of 60 are left", got)
	}
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
		if len(p.demand.entries) != 1 {
			t.Errorf("DemandShapes %d: %d shapes are told apart", shapes, len(p.demand.entries))
		}
	}
}

// A history of more shapes than are told apart counts for as many arrivals as any
// other, and what arrives does not use it up.
func TestHistoryOfManyShapesIsASample(t *testing.T) {
	const shapes = 256
	p := modest(t, shapes)
	p.Learn(append(distinct(5000, 0, 1), distinct(5000, 1, 1)...))
	if most := knownAtMost(shapes); len(p.shapes) > most || cap(p.demand.entries) > most {
		t.Errorf("%d shapes are known and there is room for %d, at most %d are meant", len(p.shapes), cap(p.demand.entries), most)
	}
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
	if most := knownAtMost(64); len(p.shapes) > most {
		t.Errorf("%d shapes are known, at most %d are meant", len(p.shapes), most)
	}
}

// While there are few shapes, one that nobody asks about any more stays known.
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

// One demand replaces another, and is thinned to so many shapes.
func TestDrift(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after [2]int64 // tasks by shape
		shapes        int
		want          float64
	}{
		{"the same mix of more tasks", [2]int64{10, 10}, [2]int64{20, 20}, 2, 0},
		{"another", [2]int64{10, 0}, [2]int64{0, 10}, 2, 1},
		{"half of it", [2]int64{10, 10}, [2]int64{20, 0}, 2, 0.5},
		{"one is forgotten", [2]int64{9, 1}, [2]int64{9, 1}, 1, 0.1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := demand{}
			shapes := [2]*shape{newShape(&Request{CPUMHz: 1}), newShape(&Request{CPUMHz: 2})}
			for _, tasks := range [][2]int64{c.before, c.after} {
				d.learn()
				d.forgetPrior(100)
				for i, sh := range shapes {
					d.add(sh, prior, tasks[i])
				}
			}
			d.thin(c.shapes)
			if got := d.drift(); math.Abs(got-c.want) > 1e-9 {
				t.Errorf("drift is %v, want %v", got, c.want)
			}
		})
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
			p.Learn(distinct(firstReview, 0, 1))
			for _, r := range distinct(firstReview, c.gpus, 1) {
				p.Arrive(&r)
			}
			if p.lessons != c.lessons {
				t.Errorf("the demand was learned %d times, want %d", p.lessons, c.lessons)
			}
		})
	}
}
