// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"math"
	"slices"
	"testing"
)

// eight is a supply of empty nodes of eight GPUs, and a demand of which a tenth wants
// all eight of one and the others one.
func eight(nodes int) (*Supply, *Demand, Pool) {
	empty := Pool{GPUs: 8, Idle: 8, CPU: 80_000, Memory: 800 << 10, NodeCPU: 80_000, NodeMemory: 800 << 10}
	s := &Supply{Kinds: []Kind{{Free: int64(nodes) * 8000, Idle: map[int32]int{8: nodes}, Largest: Size{80_000, 800 << 10, 8}}}}
	s.Pools = func(yield func(Pool, int) bool) { yield(empty, nodes) }
	takes := func(int32) (int32, bool) { return gpuMilli, true }
	d := &Demand{}
	d.ForgetPrior(1000)
	d.Add(&Shape{CPU: 40_000, Memory: 400 << 10, GPUs: 8, Milli: 8000, Whole: true, Takes: takes}, Prior, 1)
	d.Add(&Shape{CPU: 5_000, Memory: 1024, GPUs: 1, Milli: 1000, Whole: true, Takes: takes}, Prior, 9)
	return s, d, empty
}

func TestHowManyMustEnd(t *testing.T) {
	for _, c := range []struct{ missing, held, residents, want int64 }{
		{0, 8, 4, 0},   // it is there
		{-3, 8, 4, 0},  // more than enough
		{4, 8, 4, 2},   // half of what four hold
		{5, 8, 4, 3},   // and a bit
		{8, 8, 4, 4},   // all
		{20, 8, 4, 4},  // more than all hold
		{3, 0, 4, 0},   // none is held: it never comes
		{1, 100, 1, 1}, // one holds it all
	} {
		if got := mustEnd(c.missing, c.held, c.residents); got != c.want {
			t.Errorf("mustEnd(%d, %d, %d) = %d, want %d", c.missing, c.held, c.residents, got, c.want)
		}
	}
}

func TestWhatPlacesAreThere(t *testing.T) {
	s, d, empty := eight(1)
	pl := NewPlaces(s, d, d.Weights())
	if len(pl.classes) != 1 || pl.classes[0].gpus != 8 || math.Abs(pl.classes[0].part-0.1) > 1e-9 {
		t.Fatalf("classes %+v, want one of eight GPUs, a tenth of the arrivals", pl.classes)
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
		b := empty
		b.Idle, b.CPU, b.Memory, b.Residents = c.idle, c.cpu, c.memory, c.residents
		counts := pl.Counts(&b)
		if want := int16(c.want * 8 * placeGrain); counts[0] != want {
			t.Errorf("%s: %d, want %d grains", c.name, counts[0], want)
		}
	}
	for _, c := range []struct {
		idle        int32
		cpu, memory int64
		want        int64
	}{{8, 80_000, 800 << 10, 1}, {8, 39_999, 800 << 10, 0}, {8, 40_000, 400<<10 - 1, 0}, {7, 80_000, 800 << 10, 0}, {8, -1, 800 << 10, 0}} {
		b := empty
		b.Idle, b.CPU, b.Memory = c.idle, c.cpu, c.memory
		if got := pl.classes[0].there(&b); got != c.want {
			t.Errorf("%+v: room for %d now, want %d", c, got, c.want)
		}
	}
}

func TestPricesOfPlaces(t *testing.T) {
	s, d, _ := eight(1)
	w := d.Weights()
	pl := NewPlaces(s, d, w)
	// The next 8,000 milli that are given out bring 8,000/1,700·0.1 = 0.47 tasks of
	// eight, and one place is there: π = 2·0.47/2 of a GPU.
	pl.SetPrices(s, d, w, 8000, 1)
	if got := pl.Price[0]; got != 470 {
		t.Errorf("price %d, want 470", got)
	}
	pl.SetPrices(s, d, w, 8000, 0.5)
	if got := pl.Price[0]; got != 235 {
		t.Errorf("at half the turnover %d, want 235", got)
	}
	pl.SetPrices(s, d, w, 80_000, 1)
	if got := pl.Price[0]; got != 1000 {
		t.Errorf("where places are scarce %d, want a GPU", got)
	}
	pl.SetPrices(s, d, w, 8000, 0)
	if got := pl.Price[0]; got != 0 {
		t.Errorf("where nothing ends %d, want 0", got)
	}
	less := PlaceCounts{2 * placeGrain}
	pl.Price[0] = 470
	if got := pl.Cost(&less); got != 940 {
		t.Errorf("two GPUs cost %d, want 940", got)
	}
}

func TestTurnover(t *testing.T) {
	var tr Turnover
	for i := range 11 {
		if tr.Start(); tr.Change() {
			t.Fatalf("nothing has ended after %d starts", i)
		}
		if tr.End(); tr.Change() != (i == 10) {
			t.Fatalf("after %d ends: %+v; tasks end from the eleventh on", i+1, tr)
		}
	}
	for range 10_000 {
		tr.Start()
		tr.End()
	}
	if tr.Rate < 0.9 || tr.Rate > 1 {
		t.Errorf("where as many end as start the rate is %g", tr.Rate)
	}
	n := 0
	for ; !tr.Change(); n++ {
		tr.Start()
	}
	if tr.Lives || n < 2000 || n > 2500 {
		t.Errorf("after %d starts without an end tasks still end", n)
	}
}

func TestSparePrice(t *testing.T) {
	for _, c := range []struct {
		ratio, turnover, several float64
		want                     int64
	}{
		{0.5, 1, 1, 0}, {0.92, 1, 1, 0}, {0.97, 1, 1, 10}, {1.02, 1, 1, 20}, {3, 1, 1, 20}, {3, 0.5, 1, 10}, {3, 0, 1, 0},
		{3, 1, 0, 0}, {3, 1, spareSeveral / 2, 10}, {3, 1, spareSeveral, 20},
	} {
		if got := SparePrice(c.ratio, c.turnover, c.several); got != c.want {
			t.Errorf("at ratio %g, turnover %g and %g asked for by tasks of several: %d, want %d", c.ratio, c.turnover, c.several, got, c.want)
		}
	}
}

// Several is by GPUs, not by tasks.
func TestSeveralOfADemand(t *testing.T) {
	d := &Demand{}
	if got := d.Several(); got != 0 {
		t.Errorf("of nothing %g is asked for by tasks of several", got)
	}
	d.ForgetPrior(100)
	d.Add(&Shape{GPUs: 1, Milli: 500}, Prior, 4)
	d.Add(&Shape{GPUs: 2, Milli: 2000, Whole: true}, Prior, 1)
	d.Add(&Shape{CPU: 1000}, Prior, 95)
	if got := d.Several(); got != 0.5 {
		t.Errorf("tasks of several ask for %g of the GPUs, want 0.5", got)
	}
}

// What is the scarcest says how many tasks of a class there is room for; what they do not
// need says nothing.
func TestRoomIsByTheScarcest(t *testing.T) {
	for name, c := range map[string]struct {
		class placeClass
		pool  Pool
		want  int64
	}{
		"GPUs":             {placeClass{gpus: 2, cpu: 10, memory: 10}, Pool{Idle: 7, CPU: 100, Memory: 100}, 3},
		"CPU":              {placeClass{gpus: 2, cpu: 10, memory: 10}, Pool{Idle: 8, CPU: 29, Memory: 100}, 2},
		"memory":           {placeClass{gpus: 2, cpu: 10, memory: 10}, Pool{Idle: 8, CPU: 100, Memory: 19}, 1},
		"no CPU needed":    {placeClass{gpus: 2, memory: 10}, Pool{Idle: 8, Memory: 30}, 3},
		"the least memory": {placeClass{gpus: 2, memory: 1}, Pool{Idle: 8, Memory: 3}, 3},
		"the least CPU":    {placeClass{gpus: 2, cpu: 1, memory: 1}, Pool{Idle: 8, CPU: 2, Memory: 3}, 2},
		"no memory":        {placeClass{gpus: 2, cpu: 1}, Pool{Idle: 8, CPU: 3}, 3},
		"more than it has": {placeClass{gpus: 2, cpu: 10, memory: 10}, Pool{Idle: 8, CPU: -30, Memory: 100}, 0},
	} {
		if got := c.class.there(&c.pool); got != c.want {
			t.Errorf("%s: room for %d, want %d", name, got, c.want)
		}
	}
}

// An empty node has a place for what wants all of it, whatever of it that is.
func TestATaskMayWantAllOfANode(t *testing.T) {
	empty := Pool{GPUs: 4, Idle: 4, CPU: 100, NodeCPU: 100, Memory: 200, NodeMemory: 200}
	for name, c := range map[string]struct {
		class placeClass
		want  float64 // GPUs in places
	}{
		"all GPUs":          {placeClass{gpus: 4, cpu: 1, memory: 1}, 4},
		"all CPU":           {placeClass{gpus: 2, cpu: 100, memory: 1}, 2},
		"all memory":        {placeClass{gpus: 2, cpu: 1, memory: 200}, 2},
		"half of each":      {placeClass{gpus: 2, cpu: 50, memory: 100}, 4},
		"a GPU too many":    {placeClass{gpus: 5, cpu: 1, memory: 1}, 0},
		"too much memory":   {placeClass{gpus: 2, cpu: 1, memory: 201}, 0},
		"on another kind":   {placeClass{gpus: 2, cpu: 1, memory: 1, kinds: []bool{false}}, 0},
		"no CPU, no memory": {placeClass{gpus: 4}, 4},
	} {
		if c.class.kinds == nil {
			c.class.kinds = []bool{true}
		}
		pl := Places{classes: []placeClass{c.class}}
		if got, want := pl.Counts(&empty), (PlaceCounts{int16(c.want * placeGrain)}); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// Tasks of as many GPUs that may use other kinds are another class.
func TestClassesAreByKind(t *testing.T) {
	kind := Kind{Largest: Size{80_000, 800 << 10, 8}, Idle: map[int32]int{}}
	s := &Supply{Kinds: []Kind{kind, kind}}
	on := func(kinds ...int32) func(int32) (int32, bool) {
		return func(id int32) (int32, bool) { return gpuMilli, slices.Contains(kinds, id) }
	}
	d := &Demand{}
	d.ForgetPrior(1000)
	for _, takes := range []func(int32) (int32, bool){on(0), on(1), on(0, 1), on(0)} {
		d.Add(&Shape{CPU: 1000, GPUs: 8, Milli: 8000, Whole: true, Takes: takes}, Prior, 1)
	}
	d.Add(&Shape{CPU: 1000, GPUs: 8, Milli: 8000, Whole: true, Takes: on(2)}, Prior, 1)
	pl := NewPlaces(s, d, d.Weights())
	if len(pl.classes) != 3 {
		t.Errorf("%d classes, want one for each kind and one for both, and none for a kind that is not there", len(pl.classes))
	}
}

// Only tasks of several whole GPUs want room for several.
func TestWhoWantsRoomForSeveral(t *testing.T) {
	d := &Demand{}
	d.ForgetPrior(1000)
	takes := func(int32) (int32, bool) { return gpuMilli, true }
	for _, sh := range []Shape{
		{GPUs: 1, Whole: true}, {GPUs: 2, Whole: true}, {GPUs: 8, Whole: true}, {GPUs: 9, Whole: true}, {GPUs: 4}, {GPUs: 0},
	} {
		sh.Takes, sh.Milli = takes, int64(sh.GPUs)*gpuMilli
		d.Add(&sh, Prior, 1)
	}
	if got, want := d.wanted(), [biggestSlot + 1]float64{2: 1.0 / 6, 8: 1.0 / 6}; got != want {
		t.Errorf("parts of the arrivals that want so many: %v, want %v", got, want)
	}
	for range 3 {
		d.Arrive(&Shape{GPUs: 4, Milli: 4000, Whole: true, Takes: takes})
	}
	if got := d.wanted(); got[4] != 3.0/FirstReview || got[8] != 1.0/6 {
		t.Errorf("after arrivals %v: what is expected and what arrived each count in full", got)
	}
}
