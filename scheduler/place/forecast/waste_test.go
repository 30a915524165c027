// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"slices"
	"testing"
)

// mix is a demand of shares and CPU-only tasks, each as frequent, on one kind of GPU.
func mix(milli ...int64) (*Supply, *Demand) {
	s := &Supply{Kinds: []Kind{{Free: 8000, Idle: map[int32]int{8: 1}, Largest: Size{96_000, 1 << 20, 8}}}}
	d := &Demand{}
	d.ForgetPrior(100)
	for _, m := range milli {
		d.Add(&Shape{CPU: 1000, GPUs: min(1, int(m)), Milli: m, Takes: func(int32) (int32, bool) { return int32(m), true }}, Prior, 1)
	}
	return s, d
}

// waste is what a pool with so much free is expected to waste.
func waste(t *testing.T, p Precision, cpu int64, shares []int32, milli ...int64) int32 {
	t.Helper()
	ws := NewWaste(p)
	ws.Learn(mix(milli...))
	key := ws.Key(0, cpu)
	for _, s := range shares {
		key = key.Plus(KeyOfShare(s))
	}
	got := ws.Estimate(key, 0, cpu, shares)
	if known, ok := ws.Known(key); !ok || known != got {
		t.Errorf("%v: estimated %d, remembered %d, %v", shares, got, known, ok)
	}
	if again := ws.Estimate(key, 0, cpu, shares); again != got {
		t.Errorf("%v: %d, then %d", shares, got, again)
	}
	return got
}

func TestWaste(t *testing.T) {
	p := Precision{Streams: 8, Misses: 6, CPUSteps: 96}
	for _, c := range []struct {
		name   string
		cpu    int64
		shares []int32
		milli  []int64
		want   int32
	}{
		{"halves fill it", 96_000, []int32{500, 1000}, []int64{500}, 0},
		{"what is too little for any is lost", 96_000, []int32{499, 1000}, []int64{500}, 499},
		{"and beside what fits once", 96_000, []int32{700}, []int64{500}, 200},
		{"without CPU all is lost", 500, []int32{500, 1000}, []int64{500}, 1500},
		{"CPU for one", 1000, []int32{500, 1000}, []int64{500}, 1000},
		{"CPU-only tasks leave GPUs idle", 96_000, []int32{1000}, []int64{0}, 1000},
		{"nothing is free", 96_000, []int32{0, 0}, []int64{500}, 0},
	} {
		if got := waste(t, p, c.cpu, c.shares, c.milli...); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	if got := NewWaste(p); len(got.futures) != 0 {
		t.Error("it knows futures before it has learned")
	}
	ws := NewWaste(p)
	ws.Learn(mix())
	if got := ws.Estimate(ws.Key(0, 1000), 0, 1000, []int32{1000}); got != 0 {
		t.Errorf("without a demand %d is wasted", got)
	}
}

// The more patient futures are, the less is wasted.
func TestPatienceFills(t *testing.T) {
	shares := []int32{300, 400, 900}
	var got []int32
	for _, misses := range []int{1, 3, 12} {
		got = append(got, waste(t, Precision{Streams: 32, Misses: misses, CPUSteps: 96}, 96_000, shares, 300, 400, 500, 700, 900))
	}
	if !slices.IsSortedFunc(got, func(a, b int32) int { return int(b - a) }) || got[0] == got[2] {
		t.Errorf("waste %v with patience of 1, 3 and 12", got)
	}
}

func TestTighterTasksGoFirst(t *testing.T) {
	f := future{minCPU: 1, minShare: 50}
	task := func(share int32) futureTask { return newFutureTask(1, share) }
	for _, c := range []struct {
		task, first int32
		want        bool // the task goes, and not the first
	}{
		{400, 300, true}, {300, 400, false}, {900, 300, false}, {950, 300, true}, {0, 300, false}, {400, 0, false},
	} {
		goes := c.first
		if c.want {
			goes = c.task
		}
		want := int64(1400 - goes)
		if got, _ := f.fill([]futureTask{task(c.first), task(c.task)}, 1, []int32{400, 1000}, 1); got != want {
			t.Errorf("a task of %d after one of %d: %d stay idle, want %d", c.task, c.first, got, want)
		}
	}
}

func TestFillTakesTheTighterOfTwo(t *testing.T) {
	f := future{minCPU: 1, minShare: 300}
	stream := []futureTask{newFutureTask(1, 300), newFutureTask(1, 400), newFutureTask(1, 900), newFutureTask(1, 900)}
	if got, _ := f.fill(stream, 10, []int32{400}, 1); got != 0 {
		t.Errorf("%d stays idle beside the tighter task", got)
	}
	if got, _ := f.fill(stream[2:], 10, []int32{400}, 1); got != 400 {
		t.Errorf("%d stays idle where nothing fits, want 400", got)
	}
	if got, _ := f.fill([]futureTask{newFutureTask(1, 900), newFutureTask(1, 900), newFutureTask(1, 400), newFutureTask(1, 900)}, 10, []int32{400}, 1); got != 400 {
		t.Errorf("%d stays idle with patience for one miss, want 400", got)
	}
	if got, _ := f.fill([]futureTask{newFutureTask(1, 900), newFutureTask(1, 900), newFutureTask(1, 400), newFutureTask(1, 900)}, 10, []int32{400}, 2); got != 0 {
		t.Errorf("%d stays idle with patience for two, want 0", got)
	}
}

// A task of a future comes once, and so does the one beside it.
func TestTasksOfAFutureComeOnce(t *testing.T) {
	f := future{minCPU: 1, minShare: 300}
	never := newFutureTask(1, 1000)
	once := []futureTask{newFutureTask(1, 300), never, never, never}
	if got, _ := f.fill(once, 10, []int32{600}, 1); got != 300 {
		t.Errorf("%d stays idle beside one task of 300, want 300", got)
	}
	if got, _ := f.fill([]futureTask{newFutureTask(1, 300), newFutureTask(1, 300), never, never}, 10, []int32{600}, 1); got != 300 {
		t.Errorf("%d stays idle where one of two comes, want 300", got)
	}
	if got, _ := f.fill(slices.Concat(once[:2], once), 10, []int32{600}, 1); got != 0 {
		t.Errorf("%d stays idle beside two tasks of 300, want 0", got)
	}
}

// Tasks that a kind of GPU cannot have say nothing of what will be used there.
func TestTasksOfAnotherKindAreNoFuture(t *testing.T) {
	s, d := mix(500)
	d.Add(&Shape{GPUs: 1, Milli: 100, Takes: func(kind int32) (int32, bool) { return 100, kind == 1 }}, Prior, 1)
	ws := NewWaste(Precision{Streams: 8, Misses: 6, CPUSteps: 96})
	ws.Learn(s, d)
	key := ws.Key(0, 96_000).Plus(KeyOfShare(499))
	if got := ws.Estimate(key, 0, 96_000, []int32{499}); got != 499 {
		t.Errorf("of 499 that are too little for any task of this kind %d stay idle", got)
	}
}

// Careful prices are several times as high, those of models more so, and charge for room
// also where there is enough.
func TestCarefulPrices(t *testing.T) {
	w := Pricing{ModelMilli: 1000, ModelCapMilli: 4000, SlotMilli: 50, SlotFloor: 30}
	for n, want := range map[int64][4]int64{
		0: {1000, 4000, 50, 30}, 2: {8000, 32_000, 100, 1000}, 5: {20_000, 80_000, 250, 1000},
	} {
		c := w.Careful(n)
		if got := [4]int64{c.ModelMilli, c.ModelCapMilli, c.SlotMilli, c.SlotFloor}; got != want {
			t.Errorf("%d times as careful: %v, want %v", n, got, want)
		}
	}
}

// What was estimated is remembered, of however many states.
func TestManyStatesAreRemembered(t *testing.T) {
	var m memo
	key := func(i int) StateKey { return keyOfHost(0, int64(i)) }
	const states = 5000
	for i := range states {
		if _, ok := m.get(key(i)); ok {
			t.Fatalf("state %d is known before it was seen", i)
		}
		m.put(key(i), int32(i))
	}
	for i := range states {
		if v, ok := m.get(key(i)); !ok || v != int32(i) {
			t.Fatalf("state %d is remembered as %d, %v", i, v, ok)
		}
	}
	if m.reset(); m.count != 0 {
		t.Error("it is not empty after it was emptied")
	}
	if _, ok := m.get(key(1)); ok {
		t.Error("an emptied one remembers")
	}
}

// Prices are rounded to the nearest of what is charged.
func TestPricesAreRounded(t *testing.T) {
	for price, want := range map[int64][2]int64{0: {0, 0}, 2: {0, 0}, 3: {0, 5}, 4: {0, 5}, 5: {10, 5}, 7: {10, 5}, 8: {10, 10}, 14: {10, 15}, 15: {20, 15}, 16: {20, 15}, 17: {20, 15}, 18: {20, 20}} {
		p := Prices{Model: []int64{price}}
		for k := range p.Slots {
			p.Slots[k] = price
		}
		p.coarsen()
		if p.Model[0] != want[0] || p.Slots[0] != want[1] || p.Slots[biggestSlot] != want[1] {
			t.Errorf("%d becomes %d of a model and %d of a slot, want %v", price, p.Model[0], p.Slots[0], want)
		}
	}
}

func TestPour(t *testing.T) {
	kinds := []Kind{{Free: 999}, {Free: 1999}, {Free: 999}}
	load := make([]float64, 3)
	pour([]int32{0, 1}, 600, load, kinds)
	if load[0] != 200 || load[1] != 400 || load[2] != 0 {
		t.Errorf("load %v, want it even per free milli", load)
	}
	pour([]int32{1, 2}, 300, load, kinds)
	if load[2] != 233.33333333333334 || load[1] < 466 || load[1] > 467 {
		t.Errorf("load %v, want the lower kind filled first", load)
	}
}

// Demand that names one of two models makes that one dear; other demand none.
func TestModelPrices(t *testing.T) {
	s := &Supply{Kinds: []Kind{{Free: 4000, Idle: map[int32]int{}, Largest: Size{96_000, 1 << 20, 8}}, {Free: 4000, Idle: map[int32]int{}, Largest: Size{96_000, 1 << 20, 8}}}}
	price := func(bound bool, cap int64) []int64 {
		d := &Demand{}
		d.ForgetPrior(100)
		d.Add(&Shape{GPUs: 1, Milli: 500, Bound: bound, Takes: func(kind int32) (int32, bool) { return 500, !bound || kind == 1 }}, Prior, 1)
		d.Add(&Shape{GPUs: 1, Milli: 500, Takes: func(int32) (int32, bool) { return 500, true }}, Prior, 1)
		return NewPrices(s, d, &Pricing{ModelMilli: 1000, ModelCapMilli: cap}).Model
	}
	if got := price(true, 4000); got[0] != 0 || got[1] != 1000 {
		t.Errorf("prices %v, want 1000 of the second: half of what is free, all on half of the GPUs", got)
	}
	if got := price(true, 300); got[1] != 300 {
		t.Errorf("prices %v, want the cap", got)
	}
	if got := price(false, 4000); got[0] != 0 || got[1] != 0 {
		t.Errorf("prices %v of demand that is bound to nothing", got)
	}
}

func TestScarcity(t *testing.T) {
	for _, c := range []struct{ expected, slots, floor, want float64 }{
		{100, 0, 0.03, 1}, {0, 10, 0.03, 0}, {4, 15, 0, 0.0625}, {1, 199, 0.5, 0.01}, {10, 99, 0.03, 0.03},
	} {
		if got := scarcity(c.expected, c.slots, c.floor); got < c.want-1e-9 || got > c.want+1e-9 {
			t.Errorf("scarcity(%g, %g, %g) = %g, want %g", c.expected, c.slots, c.floor, got, c.want)
		}
	}
}

func TestSlotPrices(t *testing.T) {
	s, d, _ := eight(2)
	p := NewPrices(s, d, &Pricing{SlotMilli: 100, SlotFloor: 30})
	// 16,000 milli bring 16,000/1,700·0.1 = 0.94 tasks of eight for two places: ρ = (2.88/3)⁴ = 0.85.
	if got := p.Slots[8]; got != 680 || p.Slots[7] != 0 {
		t.Errorf("a whole node is worth %d and a broken one %d, want 680 and 0", got, p.Slots[7])
	}
	same := *p
	if p.Fill(0.5); p.Slots[8] != 340 || p.Equal(&same) || !p.Equal(p) {
		t.Errorf("half is %d", p.Slots[8])
	}
}

// A shape that an empty node could not hold is no future of its kind.
func TestFuturesFitAnEmptyNode(t *testing.T) {
	largest := Size{CPU: 1000, Memory: 100, GPUs: 4}
	takes := func(kind int32) (int32, bool) { return 250, kind == 0 }
	for _, c := range []struct {
		name string
		sh   Shape
		kind int32
		want futureTask
		ok   bool
	}{
		{"all of it", Shape{CPU: 1000, Memory: 100, GPUs: 4, Takes: takes}, 0, newFutureTask(250, 250), true},
		{"CPU only", Shape{CPU: 1000, Memory: 100}, 0, newFutureTask(1000, 0), true},
		{"more CPU", Shape{CPU: 1001, GPUs: 1, Takes: takes}, 0, 0, false},
		{"more memory", Shape{Memory: 101, GPUs: 1, Takes: takes}, 0, 0, false},
		{"more GPUs", Shape{GPUs: 5, Takes: takes}, 0, 0, false},
		{"another kind", Shape{GPUs: 1, Takes: takes}, 1, newFutureTask(0, 250), false},
	} {
		got, ok := futureOf(&c.sh, c.kind, largest)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %x, %v", c.name, got, ok)
		}
	}
}

// Sixteen classes of tasks are told apart, those with the most GPUs in demand.
func TestRarePlacesAreLeftOut(t *testing.T) {
	s, d, _ := eight(1)
	takes := func(int32) (int32, bool) { return gpuMilli, true }
	for gpus := range 7 {
		for part := range 4 {
			d.Add(&Shape{CPU: int64(5000*part + 1), GPUs: 2 + gpus%6, Milli: int64(2+gpus%6) * gpuMilli, Whole: true, Takes: takes}, Prior, 1)
		}
	}
	pl := NewPlaces(s, d, d.Weights())
	if len(pl.classes) != maxPlaceClasses {
		t.Fatalf("%d classes are told apart, want %d", len(pl.classes), maxPlaceClasses)
	}
	for i := 1; i < len(pl.classes); i++ {
		if a, b := &pl.classes[i-1], &pl.classes[i]; a.part*float64(a.gpus) < b.part*float64(b.gpus) {
			t.Errorf("class %d is rarer than the next", i-1)
		}
	}
}
