// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
)

// What a rebalancing does not say is as documented, and what it says counts.
func TestDefaultsOfRebalancing(t *testing.T) {
	p := NewPlanner(NewSnapshot(), PolicyBalanced, DefaultWeights())
	got := Rebalancing{Moves: 3}.defaults(p)
	if got.Moves != 3 || got.Horizon != time.Hour || got.MinMilli != 50 || got.PoolsPerMove != 16 || !got.CanMove(&Usage{}) || got.Request == nil || got.closed == nil {
		t.Errorf("defaults %+v", got)
	}
	got = Rebalancing{Horizon: 1, MinMilli: 1, PoolsPerMove: 1, CanMove: func(*Usage) bool { return false }, Request: func(*Usage) (Request, bool) { return Request{ID: "own"}, true }}.defaults(p)
	if r, _ := got.Request(&Usage{}); got.Horizon != 1 || got.MinMilli != 1 || got.PoolsPerMove != 1 || got.CanMove(&Usage{}) || r.ID != "own" {
		t.Errorf("with all said %+v", got)
	}
	o := Rebalancing{Emptying: map[string]bool{"e": true}, CanMove: func(u *Usage) bool { return u.ID != "fixed" }}.defaults(p)
	o.closed["c"] = true
	s := NewSnapshot()
	for _, id := range []string{"e", "c", "n"} {
		if err := s.AddNode(placetest.Node(id, "A100", 1)); err != nil {
			t.Fatal(err)
		}
		if got := o.takes(s.Nodes[id]); got != (id == "n") {
			t.Errorf("node %s takes work: %v", id, got)
		}
	}
	for u, want := range map[*Usage]bool{{}: true, {ID: "fixed"}: false, {Pinned: true}: false} {
		if o.movable(u, time.Now()) != want {
			t.Errorf("%+v is movable: %v", u, !want)
		}
	}
	m := Move{GainMilli: 7, LostMilliSeconds: 5}
	if got := m.worth(&Rebalancing{Horizon: 2*time.Second + time.Second/2}); got != 9 {
		t.Errorf("worth is %d, want 9", got)
	}
}

// What a usage asked for, as far as what it holds says it.
func TestRequestsOfWhatIsHeld(t *testing.T) {
	s := NewSnapshot()
	n := placetest.Node("n", "A100", 3)
	n.GPUs[2] = placetest.GPU("other", "T4")
	n.Datacenter, n.Pool = "dc", "pool"
	if err := s.AddNode(n); err != nil {
		t.Fatal(err)
	}
	p := NewPlanner(s, PolicyBalanced, DefaultWeights())
	for _, c := range []struct {
		takes         []Take
		ok, whole     bool
		milli, memory int64
		expected      int64
	}{
		{nil, true, false, 0, 0, 0},
		{[]Take{{Milli: 500, Slices: 8, Expected: 700}}, true, false, 500, 8192, 700},
		{[]Take{{Milli: 1000, Slices: 8}}, true, false, 999, 8192, 0},
		{[]Take{{Milli: 999, Slices: 80}}, true, false, 999, 81_920, 0},
		{[]Take{{Milli: 1000, Slices: 80, Expected: 1000}}, true, true, 0, 0, 0},
		{[]Take{{Milli: 500, Slices: 8}, {GPU: 1, Milli: 500, Slices: 8}}, true, false, 500, 8192, 0},
		{[]Take{{Milli: 500, Slices: 8}, {GPU: 1, Milli: 400, Slices: 8}}, false, false, 0, 0, 0},
		{[]Take{{Milli: 500, Slices: 8}, {GPU: 1, Milli: 500, Slices: 9}}, false, false, 0, 0, 0},
		{[]Take{{Milli: 500, Slices: 8}, {GPU: 2, Milli: 500, Slices: 8}}, false, false, 0, 0, 0},
	} {
		u := Usage{ID: "u", NodeID: "n", Job: "j", Namespace: "ns", Queue: "q", Priority: 7, CPUMHz: 3, MemoryMiB: 4, MinRun: time.Minute, Takes: c.takes}
		r, ok := p.requestOf(&u)
		if ok != c.ok || r.Whole != c.whole || r.ShareMilli != c.milli || r.MemoryMiBPerGPU != c.memory || r.Expected != c.expected || r.GPUs != len(c.takes) {
			t.Errorf("%+v: %+v, %v", c.takes, r, ok)
		}
		if r.ID != "u" || r.Job != "j" || r.Namespace != "ns" || r.Queue != "q" || r.Priority != 7 || r.CPUMHz != 3 || r.MemoryMiB != 4 || r.MinRun != time.Minute || !slices.Equal(r.Datacenters, []string{"dc"}) || !slices.Equal(r.Pools, []string{"pool"}) {
			t.Errorf("%+v: %+v", c.takes, r)
		}
		if ok && len(c.takes) > 0 && (!slices.Equal(r.Models, []string{"NVIDIA A100-PCIE"}) || r.Vendor != "nvidia" || r.Mode != "slice") {
			t.Errorf("%+v: %+v", c.takes, r)
		}
	}
}

// The pools with the most waste come first, no more than are asked for, and none without work or GPUs.
func TestTheMostWastefulPools(t *testing.T) {
	s := NewSnapshot()
	for i, gpus := range []int{2, 2, 0, 2, 2, 2} {
		if err := s.AddNode(placetest.Node(fmt.Sprint("n", i), "A100", gpus)); err != nil {
			t.Fatal(err)
		}
	}
	p := NewPlanner(s, PolicyBalanced, DefaultWeights())
	for i, milli := range []int64{100, 950, 0, 900, 970} { // the last is empty
		u := Usage{ID: fmt.Sprint("u", i), NodeID: fmt.Sprint("n", i), CPUMHz: 1000}
		if milli > 0 {
			u.Takes = []Take{{Milli: milli, Slices: 80}}
		}
		if err := s.Apply(u); err != nil {
			t.Fatal(err)
		}
	}
	all := p.wasteful(10)
	if len(all) != 4 {
		t.Fatalf("%d pools", len(all))
	}
	for i, b := range all {
		if b.Kind < 0 || len(b.Node.Holders) == 0 || i > 0 && p.scorer.WasteNow(b, p.scorer.Fine) > p.scorer.WasteNow(all[i-1], p.scorer.Fine) {
			t.Errorf("pool %d is on %s", i, b.Node.Spec.ID)
		}
	}
	for n := range 5 {
		if got := p.wasteful(n); !slices.Equal(got, all[:min(n, 4)]) {
			t.Errorf("of %d pools others come first", n)
		}
	}
}

// How often prices are computed goes by the size of the cluster, and by whether tasks end.
func TestHowOftenPricesAreComputed(t *testing.T) {
	w := DefaultWeights()
	w.RepriceEvery, w.LiveRepriceEvery = 300, 100
	for _, c := range []struct {
		pools int
		lives bool
		want  int64
	}{{1, false, 300}, {1, true, 100}, {1200, false, 300}, {1200, true, 100}, {1204, true, 301}, {1204, false, 301}, {2400, true, 600}} {
		s := NewSnapshot()
		for i := range c.pools {
			if err := s.AddNode(Node{ID: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
		}
		p := NewPlanner(s, PolicyBalanced, w)
		p.scorer.Turnover.Lives = c.lives
		if got := p.repriceEvery(); got != c.want {
			t.Errorf("%d pools, tasks end: %v: every %d arrivals, want %d", c.pools, c.lives, got, c.want)
		}
	}
}

// The larger requests come first, by GPUs and then by CPU; of equal ones the first.
func TestTheLargerRequestsComeFirst(t *testing.T) {
	rs := []Request{{CPUMHz: 5}, {GPUs: 1, ShareMilli: 500}, {GPUs: 1, Whole: true}, {GPUs: 2, ShareMilli: 500, CPUMHz: 1}, {CPUMHz: 6}, {GPUs: 1, ShareMilli: 500}}
	if got, want := bySize(rs), []int{3, 2, 1, 5, 4, 0}; !slices.Equal(got, want) {
		t.Errorf("the order is %v, want %v", got, want)
	}
}

// Other nodes than some are all that are named, or all that there are.
func TestOtherNodes(t *testing.T) {
	s := NewSnapshot()
	for _, id := range []string{"c", "a", "b"} {
		if err := s.AddNode(placetest.Node(id, "A100", 1)); err != nil {
			t.Fatal(err)
		}
	}
	p := NewPlanner(s, PolicyBalanced, DefaultWeights())
	named := []string{"c", "b"}
	if got := p.otherNodes(named, []string{"b"}); !slices.Equal(got, []string{"c"}) || !slices.Equal(named, []string{"c", "b"}) {
		t.Errorf("of %q are left %q", named, got)
	}
	if got := p.otherNodes(nil, []string{"b"}); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("of all nodes are left %q", got)
	}
	if got := p.otherNodes(nil, nil); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("of all nodes are left %q", got)
	}
}

// Tasks that end make a cluster one where tasks end, and those that start without any end make it one that fills up.
func TestEndsAndStartsAreCounted(t *testing.T) {
	p := testPlanner(t, testNode("n", "A100", 1))
	for _, c := range []struct {
		note  func()
		times int
		lives bool
	}{{p.Ended, 9, false}, {p.Ended, 9, true}, {p.Started, 200, true}, {p.Started, 500, false}} {
		for range c.times {
			c.note()
		}
		p.recompute()
		if p.scorer.Turnover.Lives != c.lives {
			t.Errorf("tasks end: %v at a rate of %v", p.scorer.Turnover.Lives, p.scorer.Turnover.Rate)
		}
	}
}
