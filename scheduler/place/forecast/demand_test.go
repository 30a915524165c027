// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"math"
	"testing"
)

// tasks are shapes of so many GPUs, each with CPU of its own.
func tasks(count, gpus int) []*Shape {
	out := make([]*Shape, count)
	for i := range out {
		out[i] = &Shape{CPU: int64(1 + i), GPUs: gpus, Milli: int64(gpus) * gpuMilli, Whole: gpus > 0}
	}
	return out
}

// arrive lets tasks arrive at a demand that tells so many shapes apart.
func arrive(d *Demand, shapes int, list ...*Shape) {
	for _, sh := range list {
		d.Arrive(sh)
		d.Thin(shapes)
	}
}

// Half of the arrivals are of one shape. The others are of a shape each, in turns
// with a GPU and without.
func TestDemandOfManyShapesIsASample(t *testing.T) {
	const shapes = 256
	var d, twin Demand
	usual, again := &Shape{GPUs: 1}, &Shape{GPUs: 1}
	for i := range 20000 {
		a, b := usual, again
		if i%2 == 1 {
			a, b = &Shape{GPUs: i / 2 % 2, CPU: int64(i)}, &Shape{GPUs: i / 2 % 2, CPU: int64(i)}
		}
		arrive(&d, shapes, a)
		arrive(&twin, shapes, b)
		if d.Shapes() > shapes {
			t.Fatalf("after %d arrivals the demand holds %d shapes, at most %d are meant", i+1, d.Shapes(), shapes)
		}
	}
	weights, sum, usuals, hosts := d.Weights(), 0.0, 0.0, 0.0
	for i, e := range d.entries {
		sum += weights[i]
		switch {
		case e.shape == usual:
			usuals += weights[i]
		case e.shape.GPUs == 0:
			hosts += weights[i]
		}
		if e.shape.entry != i+1 || !e.shape.InDemand() {
			t.Errorf("entry %d is of a shape that takes %d for its entry", i, e.shape.entry-1)
		}
		if other := twin.entries[i]; other.tasks != e.tasks || other.shape.CPU != e.shape.CPU {
			t.Errorf("entry %d: the same arrivals leave %v of %d MHz and %v of %d", i, e.tasks, e.shape.CPU, other.tasks, other.shape.CPU)
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
	var d Demand
	arrive(&d, 256, tasks(first, 0)...)
	for i, sh := range tasks(2*first, 1) {
		arrive(&d, 256, sh)
		if i%1000 != 999 {
			continue
		}
		old := int64(0)
		for _, e := range d.entries {
			if e.shape.GPUs == 0 {
				old += e.tasks[Seen]
			}
		}
		got, want := float64(old)/float64(d.tasks[Seen]), first/float64(first+i+1)
		if math.Abs(got-want) > 0.15 {
			t.Errorf("after %d other arrivals the first %d are %.2f of the sample, want %.2f", i+1, first, got, want)
		}
	}
}

// learned makes a history the prior of a demand.
func learned(d *Demand, shapes int, history ...*Shape) {
	d.ForgetPrior(int64(len(history)))
	for _, sh := range history {
		d.Count(sh, Prior)
		d.Thin(shapes)
	}
}

// Shapes of which no task is left make way before any task is forgotten.
func TestEmptyEntriesGoFirst(t *testing.T) {
	var d Demand
	old := tasks(60, 0)
	learned(&d, 64, old...)
	learned(&d, 64, tasks(60, 1)...)
	if got := d.tasks[Prior]; got != 60 || d.Shapes() != 60 {
		t.Errorf("%d tasks of %d shapes of a history of 60 are left", got, d.Shapes())
	}
	if old[0].InDemand() {
		t.Error("a shape that is forgotten takes itself for one of the demand")
	}
}

// A history of more shapes than are told apart counts for as many arrivals as any
// other, and what arrives does not use it up.
func TestHistoryOfManyShapesIsASample(t *testing.T) {
	const shapes = 256
	var d Demand
	learned(&d, shapes, append(tasks(1500, 0), tasks(1500, 1)...)...)
	for range 3000 {
		arrive(&d, shapes, &Shape{GPUs: 2})
	}
	var parts [3]float64 // of the demand, by GPUs
	weights := d.Weights()
	for i, e := range d.entries {
		parts[e.shape.GPUs] += weights[i]
	}
	if math.Abs(parts[0]-0.25) > 0.1 || math.Abs(parts[2]-0.5) > 0.01 {
		t.Errorf("of the demand %.2f are the first half of the history, %.2f the second and %.2f what arrived, want 0.25, 0.25 and 0.50", parts[0], parts[1], parts[2])
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
			var d Demand
			shapes := [2]*Shape{{CPU: 1}, {CPU: 2}}
			for _, tasks := range [][2]int64{c.before, c.after} {
				d.Learn()
				d.ForgetPrior(100)
				for i, sh := range shapes {
					d.Add(sh, Prior, tasks[i])
				}
			}
			d.Thin(c.shapes)
			if got := d.Drift(); math.Abs(got-c.want) > 1e-9 {
				t.Errorf("drift is %v, want %v", got, c.want)
			}
		})
	}
}

func TestCoarse(t *testing.T) {
	share := func(milli int64) *Shape { return &Shape{GPUs: 1, Milli: milli} }
	for _, c := range []struct {
		name  string
		tasks map[*Shape]int64
		want  bool
	}{
		{"nothing small", map[*Shape]int64{share(300): 10, share(500): 10}, true},
		{"hardly anything small", map[*Shape]int64{share(300): 999, share(150): 4}, true},
		{"something small", map[*Shape]int64{share(300): 990, share(150): 5}, false},
		{"a little more is not small", map[*Shape]int64{share(151): 1}, true},
		{"nothing shared", map[*Shape]int64{{GPUs: 1, Milli: 1000, Whole: true}: 5, {CPU: 1}: 5}, false},
		{"whole GPUs do not count", map[*Shape]int64{share(100): 1, {GPUs: 1, Milli: 1000, Whole: true}: 10000}, false},
	} {
		var d Demand
		d.ForgetPrior(100)
		for sh, n := range c.tasks {
			d.Add(sh, Prior, n)
		}
		if got := d.Coarse(); got != c.want {
			t.Errorf("%s: coarse %v, want %v", c.name, got, c.want)
		}
	}
}

// What has arrived says it alone, once enough tasks that share GPUs have.
func TestArrivesCoarse(t *testing.T) {
	share := func(milli int64) *Shape { return &Shape{GPUs: 1, Milli: milli} }
	for _, c := range []struct {
		name         string
		large, small int64
		want         bool
	}{
		{"too few to tell", 899, 100, true},
		{"enough", 900, 100, false},
		{"hardly anything small", 1000, 5, true},
		{"just enough small", 995, 5, false},
	} {
		var d Demand
		d.ForgetPrior(100)
		d.Add(share(100), Prior, 1000)
		d.Add(&Shape{GPUs: 8, Milli: 8000, Whole: true}, Seen, 1000)
		d.Add(share(500), Seen, c.large)
		d.Add(share(150), Seen, c.small)
		if got := d.ArrivesCoarse(); got != c.want {
			t.Errorf("%s: coarse %v, want %v", c.name, got, c.want)
		}
	}
}
