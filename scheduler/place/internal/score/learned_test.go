// SPDX-License-Identifier: MPL-2.0

package score

import (
	"fmt"
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
)

// How carefully waste is estimated, and in which steps it counts, by what is known of the demand.
func TestPrecisionGoesByTheDemand(t *testing.T) {
	w := DefaultWeights()
	for name, p := range map[string]*forecast.Precision{"rough": &w.Rough, "fine": &w.Fine, "live rough": &w.LiveRough, "live fine": &w.LiveFine} {
		*p = forecast.Precision{Streams: len(name), Misses: 2 + len(name), CPUSteps: 8}
	}
	w.CoarseMisses, w.CoarseLiveMisses, w.CoarseStepMilli = 5, 4, 170
	few := w
	few.Rough.Misses, few.LiveRough.Misses, few.LiveFine.Misses = 3, 2, 1
	alone := w
	alone.Fine.Streams, alone.LiveFine.Streams = 0, 0
	for _, c := range []struct {
		name                      string
		weights                   Weights
		lives, coarse, same       bool
		rough, fine, step, stream int
	}{
		{"filling up", w, false, false, false, 7, 6, 20, 4},
		{"coarse", w, false, true, false, 5, 5, 170, 4},
		{"coarse, with few misses", few, false, true, false, 3, 5, 170, 4},
		{"tasks end", w, true, false, false, 12, 11, 20, 9},
		{"tasks end, coarse", w, true, true, false, 4, 4, 20, 9},
		{"tasks end, coarse, with few misses", few, true, true, false, 2, 1, 20, 9},
		{"one precision", alone, false, false, true, 7, 7, 20, 5},
		{"one precision, tasks end", alone, true, false, true, 12, 12, 20, 10},
	} {
		s := newScene(t, 37, false, DefaultWeights(), "0.5", "1")
		sc := NewScorer(s.snap, c.weights)
		sc.Turnover.Lives = c.lives
		sc.rooms = make([]classRoom, 3)
		for lessons := range 2 {
			sc.Learn(s.snap.Supply(), s.demand, c.coarse)
			if sc.Lessons != lessons+1 || len(sc.rooms) != 0 {
				t.Errorf("%s: %d lessons, and %d rooms are remembered", c.name, sc.Lessons, len(sc.rooms))
			}
		}
		if sc.Rough.Misses != c.rough || sc.Fine.Misses != c.fine || sc.Step != int64(c.step) || sc.Fine.Streams != c.stream && !c.same || (sc.Rough == sc.Fine) != c.same {
			t.Errorf("%s: %+v and %+v in steps of %d", c.name, sc.Rough.Precision, sc.Fine.Precision, sc.Step)
		}
		if sc.largest != s.snap.Supply().Largest() {
			t.Errorf("%s: the largest is %+v", c.name, sc.largest)
		}
	}
}

// Prices are careful when they are to be, count as new only where they changed, and say what is left on
// nodes where tasks end.
func TestPricesOfTheMoment(t *testing.T) {
	for _, lives := range []bool{false, true} {
		s := newScene(t, 41, lives, DefaultWeights(), "0.2", "1", "2", "4", "8")
		for range 40 {
			s.step()
		}
		sc := s.fresh()
		price := func(caution int64, want int) {
			t.Helper()
			was, epoch := sc.Prices, sc.Epoch
			sc.Price(s.snap.Supply(), s.demand, caution)
			if sc.Epoch-epoch != want || (sc.Prices != was) != (want == 1) {
				t.Errorf("tasks end: %v: %d new prices, want %d", lives, sc.Epoch-epoch, want)
			}
			if sc.Prices.Careful != (caution > 0) {
				t.Errorf("tasks end: %v: careful is %v for %d", lives, sc.Prices.Careful, caution)
			}
		}
		if sc.Epoch != 1 {
			t.Errorf("%d times priced at first", sc.Epoch)
		}
		price(0, 0)
		price(2, 1)
		price(2, 0)
		price(0, 1)
		want := int64(0)
		if lives {
			want = forecast.SparePrice(s.snap.CPUPerGPU(), sc.Turnover.Rate, s.demand.Several())
		}
		if sc.Prices.Spare != want {
			t.Errorf("tasks end: %v: what is left costs %d, want %d", lives, sc.Prices.Spare, want)
		}
		if lives {
			sc.Turnover.Rate = 0.3 // room for several is worth less where less comes back
			before := fmt.Sprint(sc.Places.Price, sc.Prices)
			sc.Price(s.snap.Supply(), s.demand, 0)
			if fmt.Sprint(sc.Places.Price, sc.Prices) == before {
				t.Error("prices do not go by how much comes back")
			}
		}
	}
}

// Of whole GPUs those that would be too hot are left out, the hottest first, as far as enough are left.
func TestTheCoolestGPUsAreTaken(t *testing.T) {
	w := DefaultWeights()
	w.HeatMilli = 1000
	s := newScene(t, 43, false, w, "1")
	nd := &fit.Need{Use: 600}
	for _, c := range []struct {
		heat  []int32
		count int
		want  []int
	}{
		{[]int32{0, 0, 0}, 1, []int{0, 1, 2}},
		{[]int32{1, 0, 0}, 1, []int{1, 2}},
		{[]int32{0, 5, 0, 1}, 2, []int{0, 2}},
		{[]int32{0, 5, 0, 1}, 3, []int{0, 2, 3}},
		{[]int32{5, 2, 3, 1}, 1, []int{3}},
		{[]int32{5, 2, 3, 1}, 2, []int{3, 1}},
		{[]int32{5, 2, 3, 1}, 4, []int{3, 1, 2, 0}},
		{[]int32{1, 1}, 1, []int{0}},
	} {
		b := &cluster.Pool{}
		s.scorer.gpus = nil
		for i, h := range c.heat {
			b.GPUs = append(b.GPUs, cluster.GPUState{Busy: 400 + h})
			s.scorer.gpus = append(s.scorer.gpus, i)
		}
		if got := s.scorer.coolest(b, c.count, nd); !slices.Equal(got, c.want) {
			t.Errorf("%d of heat %v: %v, want %v", c.count, c.heat, got, c.want)
		}
	}
}

// What is lost by a placement on hot GPUs is what it is on cool ones, and the price of their heat, on
// every kind of GPU.
func TestHeatIsLostBesideWaste(t *testing.T) {
	w := DefaultWeights()
	w.HeatMilli = 2000
	for _, model := range []string{"A100", "T4"} { // the first two kinds
		for _, ask := range []string{"0.5", "1", "2"} {
			for _, policy := range []fit.Policy{fit.PolicyPack, fit.PolicySpread} {
				s := newScene(t, 47, false, w, "0.2", "0.5", "1")
				n := placetest.Node("hot", model, 2)
				lost := func() (int64, int64) {
					t.Helper()
					r, b := s.request(ask), s.snap.Nodes["hot"].Pools[0]
					r.CPUMHz, r.MemoryMiB = 1000, 1024
					task := NewTask(fit.NewShape(r, s.snap), policy)
					v := s.scorer.evaluate(task, b)
					_, lost := s.scorer.Terms(task, b, &v, s.scorer.Score(task, b))
					return lost, int64(s.scorer.Chosen(task, b).heat)
				}
				if err := s.snap.AddNode(n); err != nil {
					t.Fatal(err)
				}
				cool, _ := lost()
				for i := range n.GPUs {
					n.GPUs[i].SurplusMilli = 700
				}
				if err := s.snap.UpdateNode(n); err != nil {
					t.Fatal(err)
				}
				hot, heat := lost()
				if want := map[string]int64{"0.5": 400, "1": 1400, "2": 2800}[ask]; heat != want || hot != cool+want {
					t.Errorf("%s on %s, %s: %d is lost on hot GPUs, %d of it for heat, want %d, and %d on cool ones", ask, model, policy, hot, heat, want, cool)
				}
			}
		}
	}
}

// What a placement breaks is the room that the pool has less once it is there.
func TestPlacementsBreakTheRoomThatIsGoneThen(t *testing.T) {
	s := newScene(t, 53, true, DefaultWeights(), "2", "4", "8", "4(A100)")
	some := 0
	for range 200 {
		s.step()
		r := s.request([]string{"0.5", "1", "2", ""}[s.rng.IntN(4)])
		r.MemoryMiB = []int64{0, 130_000, 240_000, 262_144}[s.rng.IntN(4)]
		r.CPUMHz = []int64{100, 8000, 15_000, 60_000}[s.rng.IntN(4)]
		task, b := NewTask(fit.NewShape(r, s.snap), fit.PolicyBalanced), s.snap.Pools[s.rng.IntN(len(s.snap.Pools))]
		if task.Fit(s.snap, b) != fit.Fits {
			continue
		}
		supply := b.Supply()
		var before, after forecast.PlaceCounts
		idle := b.Idle
		if b.Kind >= 0 {
			before, idle = s.scorer.Places.Counts(&supply), s.scorer.Chosen(task, b).Idle
		}
		broken := s.scorer.breaks(task.Shape, b, idle)
		s.place(task, r, b)
		supply = b.Supply()
		if b.Kind >= 0 {
			after = s.scorer.Places.Counts(&supply)
		}
		if want := before.Minus(&after); broken != want {
			t.Fatalf("%+v breaks %v, want %v", r, broken, want)
		}
		if s.snap.MustRelease(r.ID); broken != (forecast.PlaceCounts{}) {
			some++
		}
	}
	if some < 30 {
		t.Errorf("%d placements break something: that tries little", some)
	}
}

// An index knows every class after it has followed: the points of those that can take the task are those
// of their estimates at the prices of now, and the others have none. Nothing is left to follow then.
func TestIndexesKnowEveryClass(t *testing.T) {
	for _, lives := range []bool{false, true} {
		s := newScene(t, 59, lives, DefaultWeights(), "0.2", "0.5", "1", "4")
		var indexes []*Index
		for i, text := range []string{"0.5", "1", "2", "", "4(A100)"} {
			for _, policy := range []fit.Policy{fit.PolicyBalanced, fit.PolicyPack} {
				r := s.request(text)
				if i%2 == 1 {
					r.Nodes = []string{"n0", "n1", "n2", "n3", "n4", "n5"}
				}
				indexes = append(indexes, NewIndex(s.scorer, NewTask(fit.NewShape(r, s.snap), policy)))
			}
		}
		for range 150 {
			s.step()
			for _, ix := range indexes[s.rng.IntN(len(indexes)):] {
				ix.Sync()
				if ids, ok := ix.Behind(); !ok || len(ids) != 0 || ix.epoch != s.scorer.Epoch || ix.lessons != s.scorer.Lessons {
					t.Fatalf("%v are left to follow, %v", ids, ok)
				}
				if s.rng.IntN(3) == 0 {
					ix.Pick()
				}
				for id, class := range ix.List.List {
					want := int32(Worst)
					if len(class.Pools) > 0 && ix.task.Fit(s.snap, ix.PoolOf(id)) == fit.Fits {
						fresh := Estimate{}
						s.scorer.evaluateRoughly(&fresh, ix.task, ix.PoolOf(id))
						if ix.Estimates[id].known != fresh.known {
							s.scorer.evaluateFinely(&fresh, ix.task, ix.PoolOf(id))
						}
						var broken *forecast.PlaceCounts
						if lives {
							counts := s.scorer.breaks(ix.task.Shape, ix.PoolOf(id), int32(fresh.roughIdle))
							broken = &counts
						}
						want = s.scorer.points(&fresh, broken, ix.task)
					}
					if got := ix.Tree.Scores()[id]; got != want {
						t.Fatalf("%+v: class %d has %d points, want %d", ix.task.Req, id, got, want)
					}
				}
			}
		}
	}
}

// An index follows what changed since it was asked last, and has room for more classes than there are.
func TestIndexesFollowWhatChanged(t *testing.T) {
	s := newScene(t, 61, false, DefaultWeights(), "0.5", "1")
	r := s.request("0.5")
	r.Nodes = []string{"n0", "n1"}
	ix := NewIndex(s.scorer, NewTask(fit.NewShape(r, s.snap), fit.PolicyBalanced))
	ix.Sync()
	if got, want := len(ix.Estimates), 8+4+spareClasses; got != want || len(ix.fits) != want {
		t.Errorf("room for %d and %d classes, want %d", got, len(ix.fits), want)
	}
	ix.grow(len(ix.Estimates))
	if got, want := len(ix.Estimates), 8+4+spareClasses; got != want {
		t.Errorf("room for %d classes where there was enough, want %d", got, want)
	}
	if id, ok := ix.Pick(); !ok || ix.PoolOf(id).Node.Spec.ID > "n1" {
		t.Fatalf("picked %v", ok)
	}
	for i, node := range []string{"n0", "n1"} { // each in turn is full, by the only change
		u := cluster.Usage{ID: node, NodeID: node}
		for gpu := range s.snap.Nodes[node].Spec.GPUs {
			u.Takes = append(u.Takes, cluster.Take{GPU: gpu, Milli: 1000, Slices: 80})
		}
		if err := s.snap.Apply(u); err != nil {
			t.Fatal(err)
		}
		if ids, ok := ix.Behind(); !ok || !slices.Equal(ids, []int32{s.snap.Nodes[node].Pools[0].ID}) {
			t.Errorf("behind is %v, %v", ids, ok)
		}
		ix.Sync()
		if id, ok := ix.Pick(); ok != (i == 0) || ok && ix.PoolOf(id).Node.Spec.ID != "n1" {
			t.Errorf("with %d nodes full picked %v", i+1, ok)
		}
	}
	ix.by.Lessons++
	if _, ok := ix.Behind(); ok {
		t.Error("what was learned of another demand is followed")
	}
}

// GPUs are alike to a task where they are as free and as hot and both hold it; compute and memory count apart
// where they are told apart.
func TestGPUsThatAreAlikeToATask(t *testing.T) {
	nd := &fit.Need{Use: 500, Take: cluster.Take{Milli: 500, Slices: 10}}
	state := func(share, milli, slices, hot int32) cluster.GPUState {
		return cluster.GPUState{Share: share, Milli: milli, Slices: slices, Hot: hot, Busy: 1000 - milli + hot, Open: true}
	}
	as := state(600, 700, 48, 0)
	small := state(600, 400, 48, 0)
	hot := state(600, 700, 48, 100)
	closed := as
	closed.Open = false
	for _, c := range []struct {
		name            string
		gpus            []cluster.GPUState
		shares, partsOf bool
	}{
		{"none", nil, false, false},
		{"the same", []cluster.GPUState{as}, true, true},
		{"the same behind another", []cluster.GPUState{state(700, 700, 56, 0), as}, true, true},
		{"another share", []cluster.GPUState{state(500, 700, 48, 0)}, false, false},
		{"other compute", []cluster.GPUState{state(600, 690, 48, 0)}, true, false},
		{"other memory", []cluster.GPUState{state(600, 700, 50, 0)}, true, false},
		{"hot", []cluster.GPUState{hot}, false, false},
		{"without room", []cluster.GPUState{small}, false, false},
		{"closed", []cluster.GPUState{closed}, false, false},
	} {
		for paired, want := range map[bool]bool{false: c.shares, true: c.partsOf} {
			if got := seenAlike(c.gpus, &as, nd, paired); got != want {
				t.Errorf("%s, compute and memory apart: %v: alike is %v", c.name, paired, got)
			}
		}
	}
	busier := as
	busier.Busy = 900 // it would be too hot then
	if seenAlike([]cluster.GPUState{busier}, &as, nd, false) {
		t.Error("what would be too hot is as good")
	}
}

// What is lost under PACK and SPREAD is the term times the GPUs, without the heat in it, and the heat itself.
func TestWhatIsLostByTerms(t *testing.T) {
	b := &cluster.Pool{GPUs: make([]cluster.GPUState, 4)}
	for _, c := range []struct{ weight, term, heat, want int64 }{
		{100, 300, 0, 1200}, {100, 300, 20, (300-200)*4 + 20}, {1, 90_000, 50, (90_000-50_000)*4 + 50}, {0, 0, 50, 50}, {0, 7, 0, 28}, {100, 200_000, 17_000, (200_000-160_000)*4 + 17_000},
	} {
		sc := &Scorer{weights: Weights{FragmentationMilli: c.weight}}
		if got := (filling{1}).lost(sc, c.term, c.heat, b); got != c.want {
			t.Errorf("%+v: %d is lost", c, got)
		}
	}
	if got := (balanced{}).lost(&Scorer{Step: 20}, 30_000, 5, b); got != 60 {
		t.Errorf("three steps of 20 lose %d", got)
	}
}

// The last term of a score is what the others do not make up, by its weight; without a weight it is nothing.
func TestTheLastTermGoesByItsWeight(t *testing.T) {
	for _, weight := range []int64{0, 1, 50} {
		w := DefaultWeights()
		w.FragmentationMilli = weight
		s := newScene(t, 67, false, w, "0.2", "0.5", "1")
		for _, policy := range []fit.Policy{fit.PolicyPack, fit.PolicySpread} {
			task, b := NewTask(fit.NewShape(s.request("0.7"), s.snap), policy), s.snap.Nodes["n0"].Pools[0]
			v, pts := s.scorer.evaluate(task, b), s.scorer.Score(task, b)-9
			terms, _ := s.scorer.Terms(task, b, &v, pts)
			want := int64(0)
			if weight > 0 {
				want = (task.policy.sign()*int64(v.usage) - int64(pts)) * 1000 / weight
			}
			if last := terms[3]; last.ValueMilli != want || last.WeightMilli != -weight || weight > 0 && want < 9000/weight {
				t.Errorf("%s: the last term is %+v at weight %d, want %d", policy, last, weight, want)
			}
		}
	}
}
