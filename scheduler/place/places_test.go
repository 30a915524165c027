package place

import (
	"fmt"
	"math"
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

func TestHowManyMustEnd(t *testing.T) {
	for _, c := range []struct{ missing, held, residents, want int64 }{
		{0, 8, 4, 0},   // it is there
		{-3, 8, 4, 0},  // more than enough
		{4, 8, 4, 2},   // half of what four hold
		{5, 8, 4, 3},   // and a bit
		{8, 8, 4, 4},   // all
		{20, 8, 4, 4},  // more than all hold
		{3, 0, 4, 0},   // nobody holds any: it never comes
		{1, 100, 1, 1}, // one holds it all
	} {
		if got := mustEnd(c.missing, c.held, c.residents); got != c.want {
			t.Errorf("mustEnd(%d, %d, %d) = %d, want %d", c.missing, c.held, c.residents, got, c.want)
		}
	}
}

func TestWhatPlacesAreThere(t *testing.T) {
	p := livePlanner(t, 1)
	b := p.snap.banks[0]
	if len(p.places.classes) != 1 || p.places.classes[0].gpus != 8 || math.Abs(p.places.classes[0].part-0.1) > 1e-9 {
		t.Fatalf("classes %+v, want one of eight GPUs, a tenth of the arrivals", p.places.classes)
	}
	for _, c := range []struct {
		name        string
		idle        int32
		cpu, memory int64
		residents   int
		want        float64 // places
	}{
		{"empty", 8, 80_000, 800 << 10, 0, 1},
		{"room beside residents", 8, 40_000, 400 << 10, 5, 1},
		{"one of one must end", 7, 75_000, 799 << 10, 1, 1.0 / 2},
		{"the only busy GPU is all residents'", 7, 70_000, 798 << 10, 2, 1.0 / 3},
		{"all of three must end", 0, 80_000, 800 << 10, 3, 1.0 / 4},
		{"CPU is missing", 8, 39_999, 800 << 10, 4, 4.0 / 5},
		{"memory is missing", 8, 80_000, 0, 4, 3.0 / 5},
	} {
		counts := p.places.counts(b, c.idle, c.cpu, c.memory, c.residents)
		if want := int16(c.want * 8 * placeGrain); counts[0] != want {
			t.Errorf("%s: %d, want %d grains", c.name, counts[0], want)
		}
	}
	if got := p.places.classes[0].there(b); got != 1 {
		t.Errorf("an empty node has %d places, want 1", got)
	}
	placed(t, p, Request{ID: "cpu", CPUMHz: 40_001})
	if got := p.places.classes[0].there(b); got != 0 {
		t.Errorf("without its CPU it has %d places, want none", got)
	}
}

// Two nodes, one of which is broken already: in a cluster that lives a task that
// CPU alone would let go anywhere keeps away from the whole one.
func TestPlacesAreKeptWhereTasksEnd(t *testing.T) {
	p := livePlanner(t, 2)
	p.ExpectEnds()
	if !p.turnover.lives || p.places.price[0] <= 0 {
		t.Fatalf("turnover %+v, price %d", p.turnover, p.places.price[0])
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

func TestPricesOfPlaces(t *testing.T) {
	p := livePlanner(t, 1)
	d, w := p.demand, p.demand.weights()
	// The next 8,000 milli that are given out bring 8,000/1,700·0.1 = 0.47 tasks of
	// eight, and one place is there: π = 2·0.47/2 of a GPU.
	p.places.setPrices(p.snap, d, w, 8000, 1)
	if got := p.places.price[0]; got != 470 {
		t.Errorf("price %d, want 470", got)
	}
	p.places.setPrices(p.snap, d, w, 8000, 0.5)
	if got := p.places.price[0]; got != 235 {
		t.Errorf("at half the turnover %d, want 235", got)
	}
	p.places.setPrices(p.snap, d, w, 80_000, 1)
	if got := p.places.price[0]; got != 1000 {
		t.Errorf("where places are scarce %d, want a GPU", got)
	}
	p.places.setPrices(p.snap, d, w, 8000, 0)
	if got := p.places.price[0]; got != 0 {
		t.Errorf("where nothing ends %d, want 0", got)
	}
	less := placeCounts{2 * placeGrain}
	p.places.price[0] = 470
	if got := p.places.cost(&less); got != 940 {
		t.Errorf("two GPUs cost %d, want 940", got)
	}
}

func TestTurnover(t *testing.T) {
	var tr turnover
	for i := range 11 {
		if tr.start(); tr.change() {
			t.Fatalf("nothing has ended after %d starts", i)
		}
		if tr.end(); tr.change() != (i == 10) {
			t.Fatalf("after %d ends: %+v; tasks end from the eleventh on", i+1, tr)
		}
	}
	for range 10_000 {
		tr.start()
		tr.end()
	}
	if tr.rate < 0.9 || tr.rate > 1 {
		t.Errorf("where as many end as start the rate is %g", tr.rate)
	}
	n := 0
	for ; !tr.change(); n++ {
		tr.start()
	}
	if tr.lives || n < 2000 || n > 2500 {
		t.Errorf("after %d starts without an end tasks still end", n)
	}
}

func TestSparePrice(t *testing.T) {
	for _, c := range []struct {
		ratio, turnover float64
		want            int64
	}{{0.5, 1, 0}, {0.92, 1, 0}, {0.97, 1, 10}, {1.02, 1, 20}, {3, 1, 20}, {3, 0.5, 10}, {3, 0, 0}} {
		if got := spareAt(c.ratio, c.turnover); got != c.want {
			t.Errorf("at ratio %g and turnover %g: %d, want %d", c.ratio, c.turnover, got, c.want)
		}
	}
}

// Three quarters of the CPU and a quarter of the GPUs of one of two nodes are in
// use, CPU is what is short, and CPU-only work joins it there.
func TestCPUStaysInLargePieces(t *testing.T) {
	p := livePlanner(t, 2)
	placed(t, p, Request{ID: "a", GPUs: 2, Whole: true, CPUMHz: 60_000})
	if got := p.snap.cpuPerGPU(); got != 3 {
		t.Fatalf("CPU per GPU in use %g, want 3", got)
	}
	sh, used, empty := p.shapeOf(&Request{CPUMHz: 8_000}), p.snap.banks[0], p.snap.banks[1]
	if used.node.cpu > empty.node.cpu {
		used, empty = empty, used
	}
	if a, b := p.left(sh, used), p.left(sh, empty); a != 800*12/80+150 || b != 800*72/80+200 {
		t.Errorf("left %d and %d", a, b)
	}
	p.ExpectEnds()
	if p.prices.spare != sparePrice {
		t.Fatalf("price %d, want %d", p.prices.spare, sparePrice)
	}
	if got := placed(t, p, Request{ID: "cpu", CPUMHz: 8_000}); got.NodeID != used.node.spec.ID {
		t.Errorf("it goes to %s", got.NodeID)
	}
}

// What was priced before the cluster changed is priced again, without an arrival.
func TestPricesFollowTheSnapshot(t *testing.T) {
	p := livePlanner(t, 2)
	p.ExpectEnds()
	before := p.places.price[0]
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
	if _, err := p.Place(&Request{ID: "r", CPUMHz: 1}); err != nil || p.places.price[0] == before {
		t.Errorf("price %d as before, %v", before, err)
	}
}
