package score

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
)

// scene is a cluster that work comes to and leaves, with what a scorer has learned of it.
type scene struct {
	t       *testing.T
	rng     *rand.Rand
	snap    *cluster.Snapshot
	weights Weights
	demand  *forecast.Demand
	caution int64
	lives   bool
	scorer  *Scorer
	held    []string
	made    int
}

// asks is what tasks of a scene ask for.
var asks = []string{"", "0.2", "0.5", "0.7", "8G", "8G,0.6", "60G,0.1", "1", "2", "4(A100)", "1(T4)"}

func newScene(t *testing.T, seed uint64, lives bool, w Weights, demand ...string) *scene {
	for _, p := range []*forecast.Precision{&w.Rough, &w.Fine, &w.LiveRough, &w.LiveFine} { // nothing is played for long
		p.Streams, p.CPUSteps = min(p.Streams, 4), 8
	}
	w.Rough.Streams, w.LiveRough.Streams = 2, 2
	c := &scene{t: t, rng: rand.New(rand.NewPCG(seed, 1)), snap: cluster.NewSnapshot(), weights: w, demand: &forecast.Demand{}, lives: lives}
	for i := range 8 {
		n := placetest.Node(fmt.Sprint("n", i), []string{"A100", "T4", "A100"}[i%3], []int{4, 2, 8, 0}[c.rng.IntN(4)])
		n.CPUMHz = []int64{16000, 32000, 64000}[c.rng.IntN(3)]
		if i < 2 {
			n = placetest.Node(n.ID, []string{"A100", "T4"}[i], 4)
		}
		for g := range n.GPUs {
			if c.rng.IntN(3) == 0 {
				n.GPUs[g].MeasuredMilli = int64(c.rng.IntN(1000))
			}
		}
		if err := c.snap.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	c.demand.ForgetPrior(500)
	for _, text := range demand {
		sh := fit.NewShape(c.request(text), c.snap)
		c.demand.Add(&sh.Demand, forecast.Prior, int64(20+c.rng.IntN(50)))
	}
	c.demand.Learn()
	c.scorer = c.fresh()
	return c
}

// request asks for a share of GPUs and for CPU; "" for CPU alone.
func (c *scene) request(text string) *fit.Request {
	c.made++
	r := fit.Request{ID: fmt.Sprint("r", c.made)}
	if text != "" {
		var err error
		if r, err = placetest.Ask(r.ID, text); err != nil {
			c.t.Fatal(err)
		}
	}
	r.CPUMHz, r.MemoryMiB = int64(1+c.rng.IntN(4))*1000, int64(c.rng.IntN(3))*4096
	return &r
}

// fresh is a scorer that has just learned what the scene's has, and remembers nothing.
func (c *scene) fresh() *Scorer {
	sc := NewScorer(c.snap, c.weights)
	sc.Turnover.Lives = c.lives
	if c.lives {
		sc.Turnover.Rate = 1
	}
	sc.Learn(c.snap.Supply(), c.demand, false)
	sc.Price(c.snap.Supply(), c.demand, c.caution)
	return sc
}

// step lets something start, end or change.
func (c *scene) step() {
	switch op := c.rng.IntN(20); {
	case op < 10 && len(c.held) < 40:
		r := c.request(asks[c.rng.IntN(len(asks))])
		sh := fit.NewShape(r, c.snap)
		b := c.snap.Pools[c.rng.IntN(len(c.snap.Pools))]
		if sh.Fit(c.snap, b) != fit.Fits {
			return
		}
		u := cluster.Usage{ID: r.ID, NodeID: b.Node.Spec.ID, CPUMHz: r.CPUMHz, MemoryMiB: r.MemoryMiB}
		if r.GPUs > 0 {
			for _, i := range c.scorer.Chosen(NewTask(sh, fit.PolicySpread), b).GPUs {
				take := sh.Need(c.snap, b.Kind).Take
				take.GPU = b.Positions[i]
				u.Takes = append(u.Takes, take)
			}
		}
		if err := c.snap.Apply(u); err != nil {
			c.t.Fatal(err)
		}
		c.held = append(c.held, u.ID)
	case op < 16 && len(c.held) > 0:
		at := c.rng.IntN(len(c.held))
		c.snap.MustRelease(c.held[at])
		c.held = append(c.held[:at], c.held[at+1:]...)
	case op == 16: // a node that is down for a while, or gets hot
		n := c.snap.Nodes[fmt.Sprint("n", c.rng.IntN(8))].Spec
		n.Ineligible = !n.Ineligible
		if err := c.snap.UpdateNode(n); err != nil {
			c.t.Fatal(err)
		}
	case op == 17:
		c.caution = int64(c.rng.IntN(3))
		c.scorer.Price(c.snap.Supply(), c.demand, c.caution)
	case op == 18 && c.rng.IntN(4) == 0:
		sh := fit.NewShape(c.request(asks[c.rng.IntN(len(asks))]), c.snap)
		c.demand.Add(&sh.Demand, forecast.Prior, 40)
		c.demand.Learn()
		c.scorer.Learn(c.snap.Supply(), c.demand, false)
		c.scorer.Price(c.snap.Supply(), c.demand, c.caution)
	}
}

// best is the pool with the most points, the first of equal ones, by a look at every pool.
func best(sc *Scorer, task *Task) (pool *cluster.Pool, points int32) {
	points = Worst
	for _, b := range sc.snap.Pools {
		if b == nil || task.Fit(sc.snap, b) != fit.Fits {
			continue
		}
		if pts := sc.Score(task, b); pool == nil || pts > points {
			pool, points = b, pts
		}
	}
	return pool, points
}

// What an index finds is what a look at every pool finds, by a scorer that remembers nothing,
// whatever started, ended, changed or was priced anew since the index was asked last.
func TestIndexesFindTheBestPool(t *testing.T) {
	measured := DefaultWeights()
	measured.MeasuredMilli = 700
	for _, c := range []struct {
		name    string
		lives   bool
		weights Weights
		demand  []string
	}{
		{"a cluster that fills up", false, DefaultWeights(), []string{"0.2", "0.5", "1", "2", ""}},
		{"one where tasks end", true, DefaultWeights(), []string{"0.2", "0.5", "1", "4", "8", "4(A100)"}},
		{"memory apart from compute", false, DefaultWeights(), []string{"60G,0.1", "8G,0.7", "0.3", "1"}},
		{"measured", true, measured, []string{"0.2", "0.5", "1", "2"}},
		{"fast", false, FastWeights(), []string{"0.2", "0.5", "1", "8"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t, 7, c.lives, c.weights, c.demand...)
			var indexes []*Index
			for i, text := range asks {
				for _, policy := range []fit.Policy{fit.PolicyBalanced, fit.PolicyPack, fit.PolicySpread} {
					r := s.request(text)
					if i%4 == 3 {
						r.Nodes = []string{"n0", "n1", "n2", "n5"}
					}
					indexes = append(indexes, NewIndex(s.scorer, NewTask(fit.NewShape(r, s.snap), policy)))
				}
			}
			found := 0
			for range 300 {
				for range 1 + s.rng.IntN(4) {
					s.step()
				}
				ix := indexes[s.rng.IntN(len(indexes))]
				ix.Sync()
				id, ok := ix.Pick()
				sc := s.scorer
				if s.rng.IntN(8) == 0 {
					sc = s.fresh()
					sc.Prices, sc.Places = s.scorer.Prices, s.scorer.Places // as old
				}
				pool, points := best(sc, ix.task)
				if ok != (pool != nil) {
					t.Fatalf("%+v: found is %v, and the best pool %+v", ix.task.Req, ok, pool)
				}
				if !ok {
					continue
				}
				found++
				if got := ix.PoolOf(id); got != pool || ix.Tree.Scores()[id] != points {
					t.Fatalf("%+v: pool %d with %d points, want %d with %d", ix.task.Req, got.ID, ix.Tree.Scores()[id], pool.ID, points)
				}
			}
			if found < 100 {
				t.Errorf("only %d requests found a pool", found)
			}
		})
	}
}

// Under BALANCED a task on one GPU gets the one after which the least is wasted and the least is
// asked of it too much, the first of equal ones, whether the state is known or not.
func TestOneGPUIsChosenByWaste(t *testing.T) {
	w := DefaultWeights()
	w.MeasuredMilli = 500
	for _, demand := range [][]string{{"0.2", "0.5", "0.3", "1"}, {"60G,0.1", "8G,0.7", "0.3"}} {
		s := newScene(t, 3, false, w, demand...)
		for range 100 {
			s.step()
			sh := fit.NewShape(s.request([]string{"0.2", "0.5", "8G,0.6", "1"}[s.rng.IntN(4)]), s.snap)
			b := s.snap.Pools[s.rng.IntN(len(s.snap.Pools))]
			if sh.Fit(s.snap, b) != fit.Fits {
				continue
			}
			task, sc, nd := NewTask(sh, fit.PolicyBalanced), s.fresh(), sh.Need(s.snap, b.Kind)
			at, least := -1, int32(0)
			for i := range b.GPUs {
				if !nd.Fits(&b.GPUs[i]) {
					continue
				}
				cost := sc.idle(b, b.Node.CPU-sh.Req.CPUMHz, []int{i}, nd, sc.Fine) + int32(w.MeasuredMilli*b.GPUs[i].Heat(nd.Share)/1000)
				if at < 0 || cost < least {
					at, least = i, cost
				}
			}
			now := sc.idle(b, b.Node.CPU, nil, nil, sc.Fine)
			idle := b.Idle
			if b.GPUs[at].Share == cluster.GPUMilli {
				idle--
			}
			if ch := s.scorer.Chosen(task, b); len(ch.GPUs) != 1 || ch.GPUs[0] != at || ch.waste != least-now || ch.Idle != idle {
				t.Fatalf("chosen is %+v, want GPU %d with %d wasted and %d idle", ch, at, least-now, idle)
			}
		}
	}
}

// What is expected to be wasted is what futures say that nothing else has asked: of a pool as it
// is, also after it has changed, and with less on some of its GPUs.
func TestWasteIsWhatTheFuturesSay(t *testing.T) {
	for _, demand := range [][]string{{"0.2", "0.5", "0.3", "1"}, {"60G,0.1", "8G,0.7", "0.3"}} {
		s := newScene(t, 5, false, DefaultWeights(), demand...)
		afresh, wasted := forecast.NewWaste(s.scorer.Fine.Precision), 0
		afresh.Learn(s.snap.Supply(), s.demand)
		lessons := s.scorer.Lessons
		for i := range 300 {
			s.step()
			if lessons != s.scorer.Lessons {
				lessons = s.scorer.Lessons
				afresh.Learn(s.snap.Supply(), s.demand)
			}
			b := s.snap.Pools[s.rng.IntN(len(s.snap.Pools))]
			if b.Kind < 0 {
				continue
			}
			known := func(n int) forecast.StateKey { return forecast.KeyOfShare(int32(2000 + 2*i + n)) } // never asked before
			cpu, sh := b.Node.CPU-int64(s.rng.IntN(2))*1000, fit.NewShape(s.request("0.2"), s.snap)
			nd := sh.Need(s.snap, b.Kind)
			var gpus []int
			for i := range b.GPUs {
				if nd.Fits(&b.GPUs[i]) && s.rng.IntN(3) == 0 {
					gpus = append(gpus, i)
				}
			}
			if got, want := s.scorer.idle(b, cpu, gpus, nd, s.scorer.Fine), wasteBy(afresh, known(0), s.snap, b, cpu, gpus, nd); got != want {
				t.Fatalf("%d GPUs less: %d wasted, want %d", len(gpus), got, want)
			}
			got, want := s.scorer.WasteNow(b, s.scorer.Fine), wasteBy(afresh, known(1), s.snap, b, b.Node.CPU, nil, nd)
			if got != want {
				t.Fatalf("%d wasted as it is, want %d", got, want)
			}
			if got > 0 {
				wasted++
			}
		}
		if wasted < 10 {
			t.Errorf("something is wasted %d times: that tries little", wasted)
		}
	}
}

// wasteBy is the waste of a pool by futures, under a key, without the scorer.
func wasteBy(w *forecast.Waste, key forecast.StateKey, snap *cluster.Snapshot, b *cluster.Pool, cpu int64, gpus []int, nd *fit.Need) int32 {
	var shares []int32
	var parts []forecast.Part
	for i := range b.GPUs {
		g := b.GPUs[i]
		if slices.Contains(gpus, i) {
			g.Milli -= int32(nd.Take.Milli)
			g.Slices -= int32(nd.Take.Slices)
			g.Share = max(0, g.Share-nd.Share)
		}
		shares = append(shares, g.Share)
		parts = append(parts, g.Part(&snap.Kinds[b.Kind]))
	}
	if w.Paired() {
		return w.EstimateParts(key, b.Kind, cpu, parts)
	}
	slices.Sort(shares)
	return w.Estimate(key, b.Kind, cpu, shares)
}
