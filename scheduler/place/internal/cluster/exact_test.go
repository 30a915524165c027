// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// oneOfEach is a node with a sliced GPU, a shared one and a whole one, in this order.
func oneOfEach(id string) Node {
	n := Node{ID: id, CPUMHz: 10_000, MemoryMiB: 20_000}
	for i := range 3 {
		n.GPUs = append(n.GPUs, GPU{ID: fmt.Sprint(id, "-", i), Type: "T4", Mode: gpu.ModeWhole, MemoryMiB: 16_000, MeasuredMilli: Unmeasured, MeasuredMemoryMiB: Unmeasured, NUMA: -1})
	}
	n.GPUs[0].Mode, n.GPUs[0].Slices, n.GPUs[0].SliceMiB = gpu.ModeSlice, 16, 1000
	n.GPUs[1].Mode, n.GPUs[1].Replicas, n.GPUs[1].Sharing, n.GPUs[1].SeatPriority = gpu.ModeShared, 4, gpu.SharingSuspend, 80
	return n
}

func clusterOf(t *testing.T, nodes ...Node) *Snapshot {
	t.Helper()
	s := NewSnapshot()
	for _, n := range nodes {
		if err := s.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *Snapshot) mustApply(t *testing.T, list ...Usage) {
	t.Helper()
	for _, u := range list {
		if err := s.Apply(u); err != nil {
			t.Fatal(err)
		}
	}
}

// What is free, used, measured and hot on GPUs of each mode.
func TestAmountsOfGPUs(t *testing.T) {
	type want struct {
		share, hot, busy     int32
		idle                 int32
		free, used, measured int64
	}
	slice := func(milli, slices int64) Take { return Take{GPU: 0, Milli: milli, Slices: slices} }
	turns := func(n int64) Take { return Take{GPU: 1, Replicas: n} }
	whole := Take{GPU: 2, Milli: 1000}
	for _, c := range []struct {
		name   string
		change func(n *Node)
		take   Take
		want   want
	}{
		{"a slice, nothing", nil, slice(0, 0), want{1000, 0, 0, 1, 1000, 0, 0}},
		{"a slice, one", nil, slice(0, 1), want{937, 0, 0, 0, 937, 31, 31}},
		{"compute is scarcer", nil, slice(500, 4), want{500, 0, 500, 0, 500, 375, 375}},
		{"memory is scarcer", nil, slice(250, 8), want{500, 0, 250, 0, 500, 375, 375}},
		{"all", nil, slice(1000, 16), want{0, 0, 1000, 0, 0, 1000, 1000}},
		{"cordoned", func(n *Node) { n.GPUs[0].Cordoned = true }, slice(500, 8), want{0, 0, 500, 0, 0, 500, 500}},
		{"unhealthy", func(n *Node) { n.GPUs[0].Unhealthy = true }, slice(500, 8), want{0, 0, 500, 0, 0, 500, 500}},
		{"on a node that drains", func(n *Node) { n.Ineligible = true }, slice(500, 8), want{0, 0, 500, 0, 0, 500, 500}},
		{"measured compute", func(n *Node) { n.GPUs[0].MeasuredMilli = 100 }, slice(500, 8), want{500, 0, 500, 0, 500, 500, 300}},
		{"measured as nothing", func(n *Node) { n.GPUs[0].MeasuredMilli = 0 }, slice(500, 8), want{500, 0, 500, 0, 500, 500, 250}},
		{"measured memory", func(n *Node) { n.GPUs[0].MeasuredMemoryMiB = 4000 }, slice(500, 8), want{500, 0, 500, 0, 500, 500, 375}},
		{"no measured memory", func(n *Node) { n.GPUs[0].MeasuredMemoryMiB = 0 }, slice(500, 8), want{500, 0, 500, 0, 500, 500, 250}},
		{"both measured", func(n *Node) { n.GPUs[0].MeasuredMilli, n.GPUs[0].MeasuredMemoryMiB = 700, 8000 }, slice(0, 1), want{937, 0, 0, 0, 937, 31, 600}},
		{"memory of a card that has none", func(n *Node) { n.GPUs[0].MemoryMiB, n.GPUs[0].MeasuredMemoryMiB = 0, 8000 }, slice(500, 8), want{500, 0, 500, 0, 500, 500, 500}},
		{"a surplus", func(n *Node) { n.GPUs[0].SurplusMilli = 300 }, slice(500, 8), want{500, 300, 800, 0, 500, 500, 500}},
		{"a burst", nil, Take{GPU: 0, Milli: 500, Slices: 8, Expected: 700}, want{500, 200, 700, 0, 500, 500, 500}},
		{"less than promised", nil, Take{GPU: 0, Milli: 500, Slices: 8, Expected: 400}, want{500, 0, 500, 0, 500, 500, 500}},
		{"no turns", nil, turns(0), want{1000, 0, 0, 1, 1000, 0, 0}},
		{"a turn", nil, turns(1), want{750, 0, 250, 0, 750, 125, 125}},
		{"all turns", nil, turns(4), want{0, 0, 1000, 0, 0, 500, 500}},
		{"a burst of a turn", nil, Take{GPU: 1, Replicas: 1, Expected: 600}, want{750, 350, 600, 0, 750, 125, 125}},
		{"a whole GPU", nil, whole, want{0, 0, 1000, 0, 0, 1000, 1000}},
		{"a part of a whole GPU", nil, Take{GPU: 2, Milli: 300}, want{0, 0, 300, 0, 0, 650, 650}},
	} {
		n := oneOfEach("n")
		if c.change != nil {
			c.change(&n)
		}
		s := clusterOf(t, n)
		s.mustApply(t, Usage{ID: "u", NodeID: "n", Takes: []Take{c.take}})
		p := s.Nodes["n"].Pools[c.take.GPU]
		if c.take.Milli+c.take.Slices+c.take.Replicas == 0 {
			s.MustRelease("u")
		}
		g := p.GPUs[0]
		if got := (want{g.Share, g.Hot, g.Busy, p.Idle, p.Free, p.Used, p.Measured}); got != c.want || p.share != g.Share {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		free := partly{g.Milli, g.Slices}
		if g.Share == 1000 || !g.Open || n.Ineligible {
			free = partly{}
		}
		if p.partly != free {
			t.Errorf("%s: %+v is free on GPUs in use, want %+v", c.name, p.partly, free)
		}
		if s.MustRelease("u"); p.GPUs[0].Milli != 1000 || p.GPUs[0].Tasks != 0 || p.GPUs[0].Burst != 0 {
			t.Errorf("%s: after it %+v", c.name, p.GPUs[0])
		}
	}
	s := clusterOf(t, oneOfEach("n"))
	for _, c := range []struct {
		gpu             int
		take            Take
		compute, memory int64
	}{{0, slice(300, 4), 300, 250}, {0, slice(300, 0), 300, 0}, {1, turns(1), 0, 250}, {2, whole, 1000, 1000}} {
		if compute, memory := c.take.Allocates(s.kindAt(s.Nodes["n"], c.take)); compute != c.compute || memory != c.memory {
			t.Errorf("%+v allocates %d and %d, want %d and %d", c.take, compute, memory, c.compute, c.memory)
		}
	}
	for _, c := range []struct {
		kind            int
		state           GPUState
		compute, memory int32
	}{
		{0, GPUState{Milli: 300, Slices: 8}, 300, 500}, {0, GPUState{Milli: -3, Slices: -1}, 0, 0}, {0, GPUState{Milli: 1, Slices: 16}, 1, 1000},
		{1, GPUState{Milli: 1000, Replicas: 3}, 750, 750}, {1, GPUState{Milli: 1000, Replicas: -1}, 0, 0},
		{2, GPUState{Milli: 1000}, 1000, 1000}, {2, GPUState{Milli: 1000, Tasks: 1}, 0, 0}, {2, GPUState{Milli: -5}, 0, 0},
	} {
		if got := c.state.Part(&s.Kinds[c.kind]); got != forecast.NewPart(c.compute, c.memory) {
			t.Errorf("%+v is %v, want %d and %d", c.state, got, c.compute, c.memory)
		}
	}
}

// The lowest priority of a node's work, the GPU that it holds and the latest of its starts, and the
// most that any work holds.
func TestEvictablesSumUpWork(t *testing.T) {
	s := clusterOf(t, oneOfEach("n"), Node{ID: "cpu", CPUMHz: 1000, MemoryMiB: 1000})
	at := func() Evictable { return s.Evictables[s.Nodes["n"].Pools[0].ID] }
	start := func(unix int64) time.Time { return time.Unix(unix, 0) }
	if got := at(); got != (Evictable{Slices: 16, Idle: 1}) {
		t.Errorf("of an empty node: %+v", got)
	}
	for _, c := range []struct {
		u    Usage
		want Evictable
	}{
		{Usage{ID: "d", Priority: 20, Start: start(100), Takes: []Take{{GPU: 0, Milli: 200, Slices: 1}}}, Evictable{Priority: 20, Youngest: 100, Milli: 201, Largest: 201, Partly: partly{800, 15}}},
		{Usage{ID: "c", Priority: 20, Start: start(300), Takes: []Take{{GPU: 0, Milli: 100, Slices: 2}, {GPU: 2, Milli: 1000}}}, Evictable{Priority: 20, Youngest: 300, Milli: 201 + 1127, Largest: 1127, Partly: partly{700, 13}}},
		{Usage{ID: "e", Priority: 20, Start: start(200)}, Evictable{Priority: 20, Youngest: 300, Milli: 201 + 1127, Largest: 1127, Partly: partly{700, 13}}},
		{Usage{ID: "b", Priority: 10, Start: start(50), Takes: []Take{{GPU: 0, Milli: 300, Slices: 4}}}, Evictable{Priority: 10, Youngest: 50, Milli: 301, Largest: 1127, Partly: partly{400, 9}}},
		{Usage{ID: "f", Priority: 10, Takes: []Take{{GPU: 0, Milli: 50}}}, Evictable{Priority: 10, Youngest: math.MaxInt64, Milli: 301 + 51, Largest: 1127, Partly: partly{350, 9}}},
		{Usage{ID: "a", Priority: 30, Start: start(400), Takes: []Take{{GPU: 0, Milli: 10}}}, Evictable{Priority: 10, Youngest: math.MaxInt64, Milli: 301 + 51, Largest: 1127, Partly: partly{340, 9}}},
	} {
		c.u.NodeID, c.want.Slices, c.want.Held = "n", 16, true
		s.mustApply(t, c.u)
		if got := at(); got != c.want {
			t.Errorf("with %s: %+v, want %+v", c.u.ID, got, c.want)
		}
	}
	for i, want := range []Evictable{{Slices: 16, Partly: partly{340, 9}}, {Kind: 1, Idle: 1}, {Kind: 2}} {
		got := s.Evictables[s.Nodes["n"].Pools[i].ID]
		if got.Kind != want.Kind || got.Slices != want.Slices || got.Idle != want.Idle || got.Partly != want.Partly {
			t.Errorf("of pool %d: %+v", i, got)
		}
	}
	if got := s.Evictables[s.Nodes["cpu"].Pools[0].ID]; got != (Evictable{Kind: -1}) {
		t.Errorf("of a node without GPUs: %+v", got)
	}
}

// What protects work, and what of it is lost.
func TestWhatProtectsWorkAndWhatIsLost(t *testing.T) {
	start := time.Unix(10_000, 0)
	for _, c := range []struct {
		u     Usage
		after time.Duration
		want  bool
	}{
		{Usage{}, 0, false}, {Usage{Pinned: true}, time.Hour, true}, {Usage{Pinned: true, MinRun: time.Minute}, time.Hour, true},
		{Usage{MinRun: time.Minute}, time.Minute - 1, true}, {Usage{MinRun: time.Minute}, time.Minute, false}, {Usage{MinRun: 1}, 0, true}, {Usage{MinRun: 1}, 1, false},
		{Usage{}, -time.Minute, false}, {Usage{MinRun: -time.Minute}, -time.Hour, false},
	} {
		c.u.Start = start
		if got := c.u.Protected(start.Add(c.after)); got != c.want {
			t.Errorf("%+v after %s: protected is %v", c.u, c.after, got)
		}
	}
	takes := []Take{{Milli: 300}, {GPU: 1, Milli: 200}}
	for _, c := range []struct {
		u     Usage
		after time.Duration
		want  int64
	}{
		{Usage{Start: start, Takes: takes}, 10 * time.Second, 5000}, {Usage{Start: start}, 10 * time.Second, 10}, {Usage{Start: start, Takes: []Take{{Milli: 1}}}, time.Second, 1},
		{Usage{Start: start, Takes: takes}, 0, 0}, {Usage{Start: start, Takes: takes}, -time.Hour, 0}, {Usage{Takes: takes}, time.Hour, 0},
		{Usage{Start: start, Takes: takes, WorkSaved: 8 * time.Second}, 10 * time.Second, 1000}, {Usage{Start: start, Takes: takes, WorkSaved: 20 * time.Second}, 10 * time.Second, 0},
		{Usage{Start: start, Takes: takes, WorkSaved: -time.Second}, 0, 0},
	} {
		if got := c.u.LostMilliSeconds(start.Add(c.after)); got != c.want {
			t.Errorf("%+v after %s: %d is lost, want %d", c.u, c.after, got, c.want)
		}
	}
}

// What tasks seem to use of GPUs, and which placements leave them cool.
func TestUseOfGPUs(t *testing.T) {
	n := oneOfEach("n")
	n.GPUs[0].SurplusMilli, n.GPUs[2].SurplusMilli = 100, 100
	s := clusterOf(t, n)
	s.mustApply(t,
		Usage{ID: "a", NodeID: "n", Takes: []Take{{GPU: 0, Milli: 300, Slices: 1, Expected: 350}, {GPU: 1, Replicas: 1, Expected: 100}}},
		Usage{ID: "b", NodeID: "n", Takes: []Take{{GPU: 0, Milli: 100, Slices: 1}, {GPU: 1, Replicas: 2, Expected: 900}}},
		Usage{ID: "c", NodeID: "n", Takes: []Take{{GPU: 0, Slices: 1}, {GPU: 2, Milli: 1000}}},
	)
	for id, want := range map[string]struct{ most, both, alone int64 }{
		"a": {350 + 75, 350 + 75 + 250, 350 + 75}, "b": {900, 125 + 900, 125}, "c": {1100, 0, 0},
	} {
		u := s.Usages[id]
		if got := s.MostUse(u); got != want.most {
			t.Errorf("%s uses %d at most, want %d", id, got, want.most)
		}
		if got := s.HotUse(u, map[string]bool{"n-0": true, "n-1": true, "n-2": true}); got != want.both { // the third is not shared
			t.Errorf("%s uses %d of hot GPUs, want %d", id, got, want.both)
		}
		if got := s.HotUse(u, map[string]bool{"n-0": true}); got != want.alone {
			t.Errorf("%s uses %d of the first, want %d", id, got, want.alone)
		}
	}
	if got := s.MostUse(&Usage{NodeID: "n"}); got != 0 {
		t.Errorf("work without GPUs uses %d", got)
	}
	for _, c := range []struct {
		hot, busy  int32
		milli, use int64
		want       bool
	}{
		{0, 0, 100, 1000, true}, {0, 1, 100, 949, true}, {0, 1, 100, 950, false}, {0, 900, 100, 100, true}, {0, 900, 100, 101, false}, {0, 850, 99, 100, true},
		{1, 850, 100, 100, true}, {1, 851, 100, 100, false}, {1, 0, 951, 951, false}, {1, 0, 950, 950, true}, {0, 960, 100, 100, true},
	} {
		g := s.Nodes["n"].at(Take{GPU: 0})
		g.Hot, g.Busy = c.hot, c.busy
		if got := s.StaysCool(&Usage{NodeID: "n", Takes: []Take{{GPU: 0, Milli: c.milli}}}, c.use); got != c.want {
			t.Errorf("%+v: stays cool is %v", c, got)
		}
		if got, want := g.Heat(int32(c.use)), max(0, c.busy+int32(c.use)-1000); got != want {
			t.Errorf("%+v: heat %d, want %d", c, got, want)
		}
	}
}

// What is there can be read, and what is not there is not.
func TestWhatIsThereCanBeRead(t *testing.T) {
	s := clusterOf(t, oneOfEach("b"), oneOfEach("a"))
	s.mustApply(t, Usage{ID: "y", NodeID: "a", Takes: []Take{{GPU: 1, Replicas: 1}}}, Usage{ID: "x", NodeID: "a", Takes: []Take{{GPU: 0, Milli: 1, Slices: 1}, {GPU: 1, Replicas: 2}}}, Usage{ID: "z", NodeID: "a", Takes: []Take{{GPU: 2, Milli: 1000}}})
	if n, ok := s.Node("a"); !ok || n.ID != "a" || len(n.GPUs) != 3 {
		t.Errorf("node a is %+v, %v", n, ok)
	}
	if n, ok := s.Node("c"); ok || n.ID != "" {
		t.Errorf("node c is %+v, %v", n, ok)
	}
	if u, ok := s.Usage("x"); !ok || u.ID != "x" || len(u.Takes) != 2 {
		t.Errorf("usage x is %+v, %v", u, ok)
	}
	if u, ok := s.Usage("w"); ok || u.ID != "" {
		t.Errorf("usage w is %+v, %v", u, ok)
	}
	if got := s.NodeIDs(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("nodes %q", got)
	}
	ids := func(list []Usage) (out []string) {
		for _, u := range list {
			out = append(out, u.ID)
		}
		return out
	}
	for node, want := range map[string][]string{"a": {"x", "y", "z"}, "b": nil, "c": nil} {
		if got := ids(s.UsagesOn(node)); !slices.Equal(got, want) {
			t.Errorf("on %s are %q, want %q", node, got, want)
		}
	}
	for _, c := range []struct {
		node  string
		index int
		want  []string
	}{{"a", 1, []string{"x", "y"}}, {"a", 0, nil}, {"a", 2, nil}, {"a", 3, nil}, {"b", 1, nil}, {"c", 1, nil}} {
		if got := ids(s.SitsOn(c.node, c.index)); !slices.Equal(got, c.want) {
			t.Errorf("%q sit on %s-%d, want %q", got, c.node, c.index, c.want)
		}
	}
	for wanted, want := range map[int]int{0: min(gpu.NormalSeatPriority, 80), 1: 1, 80: 80, 81: 80} {
		if got := s.Nodes["a"].Spec.GPUs[1].SeatPriorityOf(wanted); got != want {
			t.Errorf("who wants %d has %d, want %d", wanted, got, want)
		}
	}
	for i, want := range []bool{false, true, false} {
		if got := s.Nodes["a"].Spec.GPUs[i].HasSeats(); got != want {
			t.Errorf("GPU %d has seats: %v", i, got)
		}
	}
}

// What is booked is known by job, priority, queue and cost, until it is released.
func TestBooks(t *testing.T) {
	s := clusterOf(t, oneOfEach("n"), oneOfEach("m"))
	s.mustApply(t,
		Usage{ID: "a", NodeID: "n", Job: "web", Namespace: "prod", Queue: "q", Priority: 10, Takes: []Take{{GPU: 0, Milli: 100, Slices: 4}}},
		Usage{ID: "b", NodeID: "m", Job: "web", Namespace: "prod", Queue: "q", Priority: 20, Reclaim: true, Takes: []Take{{GPU: 1, Replicas: 3}, {GPU: 2, Milli: 1000}}},
		Usage{ID: "c", NodeID: "n", Job: "web", Namespace: "test", Priority: 20},
		Usage{ID: "d", NodeID: "n", Priority: 20},
	)
	jobs := func(namespace string) (ids []string) {
		for _, u := range s.OfJob(namespace, "web") {
			ids = append(ids, u.ID)
		}
		slices.Sort(ids)
		return ids
	}
	check := func(prod, test []string, below15, below20, below21, reclaimable bool, held quota.Charge, claims int) {
		t.Helper()
		if got := jobs("prod"); !slices.Equal(got, prod) {
			t.Errorf("of the job are %q, want %q", got, prod)
		}
		if got := jobs("test"); !slices.Equal(got, test) {
			t.Errorf("of the job in the other namespace are %q, want %q", got, test)
		}
		if got := [...]bool{s.AnyBelow(15), s.AnyBelow(20), s.AnyBelow(21), s.AnyReclaimable()}; got != [...]bool{below15, below20, below21, reclaimable} {
			t.Errorf("below and reclaimable: %v", got)
		}
		if got := s.Held("q"); got != held || len(s.Claims("q")) != claims {
			t.Errorf("the queue holds %+v by %d, want %+v by %d", got, len(s.Claims("q")), held, claims)
		}
	}
	check([]string{"a", "b"}, []string{"c"}, true, true, true, true, quota.Charge{Milli: 250 + 750 + 1000, MemoryMiB: 4000 + 12_000 + 16_000}, 2)
	if got := s.Usages["a"].Charge(); got != s.Charge("n", []Take{{GPU: 0, Milli: 100, Slices: 4}}) || got != (quota.Charge{Milli: 250, MemoryMiB: 4000}) {
		t.Errorf("charged is %+v", got)
	}
	if got := s.Charge("n", []Take{{GPU: 0, Milli: 700, Slices: 1}}); got != (quota.Charge{Milli: 700, MemoryMiB: 1000}) {
		t.Errorf("compute beyond memory costs %+v", got)
	}
	if got := s.Charge("x", []Take{{GPU: 0, Milli: 700, Slices: 1}}); got != (quota.Charge{}) {
		t.Errorf("on a node that is not there it costs %+v", got)
	}
	gone, err := s.Release("b")
	if err != nil || gone.ID != "b" {
		t.Fatal(err)
	}
	check([]string{"a"}, []string{"c"}, true, true, true, false, quota.Charge{Milli: 250, MemoryMiB: 4000}, 1)
	s.Restore(gone)
	check([]string{"a", "b"}, []string{"c"}, true, true, true, true, quota.Charge{Milli: 2000, MemoryMiB: 32_000}, 2)
	s.MustRelease("a")
	check([]string{"b"}, []string{"c"}, false, false, true, true, quota.Charge{Milli: 1750, MemoryMiB: 28_000}, 1)
	s.MustRelease("b")
	check(nil, []string{"c"}, false, false, true, false, quota.Charge{}, 0)
	s.MustRelease("c")
	s.MustRelease("d")
	s.MustRelease("d")
	check(nil, nil, false, false, false, false, quota.Charge{}, 0)
	if len(s.jobs) != 0 || len(s.Priorities) != 0 {
		t.Errorf("left are %v and %v", s.jobs, s.Priorities)
	}
	if _, err := s.Release("d"); err == nil {
		t.Error("what is gone is released")
	}
	if err := s.Apply(Usage{ID: "e", NodeID: "n", CPUMHz: 10_001}); !errors.Is(err, ErrCapacity) {
		t.Errorf("too much CPU: %v", err)
	}
	s.mustApply(t, Usage{ID: "w", NodeID: "n", Takes: []Take{{GPU: 2, Milli: 1}}})
	for _, take := range []Take{{GPU: 2, Milli: 1}, {GPU: 1, Replicas: 5}, {GPU: 0, Slices: 17}, {GPU: 0, Milli: 1001}} {
		if err := s.Apply(Usage{ID: "f", NodeID: "n", Takes: []Take{take}}); !errors.Is(err, ErrCapacity) {
			t.Errorf("%+v: %v", take, err)
		}
	}
	for _, expected := range []int64{-1, MaxSlices + 1} {
		if err := s.Observe(Usage{ID: "f", NodeID: "n", Takes: []Take{{GPU: 0, Expected: expected}}}); err == nil {
			t.Errorf("%d is expected", expected)
		}
	}
	if err := s.Observe(Usage{ID: "f", NodeID: "n", Takes: []Take{{GPU: 0, Milli: 1001, Slices: MaxSlices, Expected: MaxSlices}}}); err != nil {
		t.Error(err)
	}
}

// How much is free in all, and how much CPU goes with the GPUs in use.
func TestStockOfACluster(t *testing.T) {
	s := clusterOf(t, oneOfEach("n"), Node{ID: "cpu", CPUMHz: 1000, MemoryMiB: 1000})
	s.mustApply(t, Usage{ID: "c", NodeID: "cpu", CPUMHz: 1000})
	if got := s.CPUPerGPU(); got != 0 {
		t.Errorf("without any GPU in use %v", got)
	}
	s.mustApply(t, Usage{ID: "u", NodeID: "n", CPUMHz: 5000, Takes: []Take{{GPU: 2, Milli: 1000}}})
	if got := s.CPUPerGPU(); math.Abs(got-1.5) > 1e-9 { // half of the CPU, a third of the GPUs
		t.Errorf("CPU per GPU is %v, want 1.5", got)
	}
	s.mustApply(t, Usage{ID: "half", NodeID: "n", Takes: []Take{{GPU: 0, Milli: 500, Slices: 1}}})
	if !s.MostlyFree(500) || s.MostlyFree(501) {
		t.Error("half of it is free")
	}
	s.MustRelease("half")
	drains := oneOfEach("drains")
	drains.Ineligible, drains.CPUMHz = true, 0
	if err := s.AddNode(drains); err != nil {
		t.Fatal(err)
	}
	if got := s.CPUPerGPU(); math.Abs(got-1.5) > 1e-9 {
		t.Errorf("with a node that drains it is %v, want 1.5", got)
	}
	for part, want := range map[int64]bool{0: true, 333: true, 334: false, 1000: false} { // two of six
		if got := s.MostlyFree(part); got != want {
			t.Errorf("%d free: %v", part, got)
		}
	}
	supply := s.Supply()
	for id, want := range []forecast.Kind{{Free: 1000, Idle: map[int32]int{0: 1, 1: 1}}, {Free: 1000, Idle: map[int32]int{0: 1, 1: 1}}, {Free: 0, Idle: map[int32]int{0: 2, 1: 0}}} {
		want.Largest = forecast.Size{CPU: 10_000, Memory: 20_000, GPUs: 1}
		if got := supply.Kinds[id]; got.Free != want.Free || got.Largest != want.Largest || got.Idle[0] != want.Idle[0] || got.Idle[1] != want.Idle[1] {
			t.Errorf("kind %d is %+v, want %+v", id, got, want)
		}
	}
	pools, seen := 0, 0
	for p, alike := range supply.Pools {
		if pools += alike; p.Kind < 0 || p.GPUs != 1 || alike < 1 {
			t.Errorf("%d pools like %+v", alike, p)
		}
	}
	for range supply.Pools {
		if seen++; seen == 2 {
			break
		}
	}
	if pools != 6 || seen != 2 {
		t.Errorf("%d pools were seen, want 6; %d states before the end, want 2", pools, seen)
	}
	if got := s.Nodes["n"].Pools[2].Supply(); got != (forecast.Pool{Kind: 2, GPUs: 1, CPU: 5000, Memory: 20_000, NodeCPU: 10_000, NodeMemory: 20_000, Residents: 1}) {
		t.Errorf("supply %+v", got)
	}
	larger := oneOfEach("larger")
	larger.CPUMHz = 30_000
	if err := s.AddNode(larger); err != nil {
		t.Fatal(err)
	}
	if got := s.Supply().Kinds[0].Largest.CPU; got != 30_000 {
		t.Errorf("the largest node has %d MHz", got)
	}
	if _, err := s.RemoveNode("larger"); err != nil {
		t.Fatal(err)
	}
	if got := s.Supply().Kinds[0].Largest.CPU; got != 10_000 || s.Stock[0].stale {
		t.Errorf("without the largest node the largest has %d MHz", got)
	}
}

// Nodes come once, keep what holds their GPUs when these are listed otherwise, and give their places to others.
func TestNodesComeChangeAndGo(t *testing.T) {
	n := oneOfEach("n")
	s := clusterOf(t, n, oneOfEach("m"))
	if err := s.AddNode(n); err == nil {
		t.Error("a node came twice")
	}
	if _, err := s.RemoveNode("x"); err == nil {
		t.Error("a node that is not there went")
	}
	s.mustApply(t, Usage{ID: "u", NodeID: "n", Takes: []Take{{GPU: 0, Milli: 100, Slices: 1}, {GPU: 1, Replicas: 1}, {GPU: 2, Milli: 1000}}})
	n.GPUs = []GPU{n.GPUs[2], n.GPUs[0]}
	if err := s.UpdateNode(n); err != nil {
		t.Fatal(err)
	}
	if u, _ := s.Usage("u"); !slices.Equal(u.Takes, []Take{{GPU: 0, Milli: 1000}, {GPU: 1, Milli: 100, Slices: 1}}) {
		t.Errorf("it holds %+v", u.Takes)
	}
	var before []int32
	for _, b := range s.Nodes["m"].Pools {
		before = append(before, b.ID)
	}
	gone, err := s.RemoveNode("m")
	if err != nil || len(gone) != 0 {
		t.Fatal(gone, err)
	}
	if s.Pools[before[0]] != nil || s.Nodes["m"] != nil || s.Evictables[before[0]] != (Evictable{}) {
		t.Error("it is still there")
	}
	if err := s.AddNode(oneOfEach("k")); err != nil {
		t.Fatal(err)
	}
	var after []int32
	for _, b := range s.Nodes["k"].Pools {
		after = append(after, b.ID)
	}
	if !slices.Equal(before, after) {
		t.Errorf("pools %v come back as %v", before, after)
	}
	if gone, err := s.RemoveNode("n"); err != nil || len(gone) != 1 || gone[0].ID != "u" || len(s.Usages) != 0 {
		t.Errorf("%+v went with the node, %v", gone, err)
	}
	zero := Node{ID: "zero", GPUs: []GPU{{ID: "least", Mode: gpu.ModeSlice, Slices: 1, SliceMiB: 1}, {ID: "most", Mode: gpu.ModeShared, Replicas: MaxSlices, SurplusMilli: GPUMilli}}}
	if err := zero.Validate(); err != nil {
		t.Error(err)
	}
}

// GPUs that are linked, or on one NUMA node of several, are near each other, and a task of several gets those that are nearest.
func TestTheNearestGPUs(t *testing.T) {
	node := func(numa []int, links ...[2]int) *Pool {
		n := Node{ID: "n", CPUMHz: 1, MemoryMiB: 1}
		for i := range numa {
			n.GPUs = append(n.GPUs, GPU{ID: fmt.Sprint(i), Mode: gpu.ModeWhole, NUMA: numa[i]})
		}
		for _, l := range links {
			n.GPUs[l[0]].Peers = append(n.GPUs[l[0]].Peers, l[1]) // one side says it
		}
		return clusterOf(t, n).Nodes["n"].Pools[0]
	}
	unknown, one, two := []int{-1, -1, -1, -1}, []int{0, 0, 0, 0}, []int{0, 1, 0, 1}
	for _, c := range []struct {
		b     *Pool
		gpus  []int
		n     int
		want  []int
		apart int64
		equal bool // all that may be taken are as near
	}{
		{node(unknown), []int{1, 2, 3}, 2, []int{1, 2}, 1000, true},
		{node(one), []int{1, 2, 3}, 2, []int{1, 2}, 1000, true},
		{node(two), []int{0, 1, 2, 3}, 2, []int{0, 2}, 500, false},
		{node(two), []int{1, 2, 3}, 2, []int{1, 3}, 500, false},
		{node(two), []int{0, 2}, 2, []int{0, 2}, 500, true},
		{node(unknown, [2]int{2, 3}), []int{0, 1, 2, 3}, 2, []int{2, 3}, 0, false},
		{node(unknown, [2]int{3, 2}), []int{0, 1, 2, 3}, 2, []int{2, 3}, 0, false},
		{node(unknown, [2]int{0, 1}, [2]int{2, 3}), []int{0, 1, 2, 3}, 2, []int{0, 1}, 0, false},
		{node(unknown, [2]int{0, 1}, [2]int{1, 2}), []int{0, 1, 2, 3}, 3, []int{0, 1, 2}, 334, false},
		{node(two, [2]int{1, 2}), []int{0, 1, 2, 3}, 3, []int{0, 2, 1}, 500, false},
		{node(two), []int{0, 1, 2, 3}, 3, []int{0, 2, 1}, 834, false},
		{node(two, [2]int{1, 2}), []int{0, 1, 2, 3}, 1, []int{0}, 1000, false},
		{node(unknown, [2]int{0, 1}, [2]int{0, 2}, [2]int{1, 2}), []int{0, 1, 2}, 3, []int{0, 1, 2}, 0, true},
		{node(unknown, [2]int{0, 1}, [2]int{0, 2}), []int{0, 1, 2}, 3, []int{0, 1, 2}, 334, false},
	} {
		got := c.b.Nearest(slices.Clone(c.gpus), c.n)
		if !slices.Equal(got, c.want) || c.b.Apart(got) != c.apart {
			t.Errorf("%d of %v: %v, %d apart, want %v, %d", c.n, c.gpus, got, c.b.Apart(got), c.want, c.apart)
		}
		if got := c.b.Node.Spec.EquallyNear(c.gpus); got != c.equal {
			t.Errorf("%v are equally near: %v", c.gpus, got)
		}
	}
}

// What changes is logged once for each pool, with what it has free; of classes that are empty a few are kept, and
// then used anew, never one that has a pool.
func TestClassesAreLoggedAndUsedAnew(t *testing.T) {
	s := clusterOf(t, oneOfEach("n"), oneOfEach("m"))
	pool := s.Nodes["n"].Pools[0]
	end := s.Each.Log.End()
	s.mustApply(t, Usage{ID: "u", NodeID: "n", CPUMHz: 4000, MemoryMiB: 3000, Takes: []Take{{GPU: 0, Milli: 100, Slices: 4}}})
	ids, ok := s.Each.Log.Since(end)
	if want := []int32{0, 1, 2}; !ok || !slices.Equal(ids, want) {
		t.Errorf("logged are %v, want %v", ids, want)
	}
	if cl := s.Each.List[pool.ID]; cl.Stamp != end || cl.Born != end || cl.CPU != 6000 || cl.Memory != 17_000 || cl.Kind != 0 || cl.Share != 750 {
		t.Errorf("class %+v", cl)
	}
	s.MustRelease("u")
	class, end := pool.Class, s.States.Log.End()
	most := 0
	for i := range 400 {
		cpu := int64(1 + i/2%150) // each state twice, and again when it was forgotten
		s.mustApply(t, Usage{ID: "u", NodeID: "n", CPUMHz: cpu})
		for _, b := range s.Nodes["n"].Pools {
			cl := s.States.List[b.Class]
			if cl.CPU != 10_000-cpu || cl.Kind != b.Kind || !slices.Equal(cl.Pools, []int32{b.ID}) || s.States.First[b.Class] != b.ID || s.States.keys[b.Class] != b.classKey() {
				t.Fatalf("with %d MHz less pool %d is in class %+v", cpu, b.ID, cl)
			}
			if ids, ok := s.States.Log.Since(end); !ok || !slices.Contains(ids, b.Class) {
				t.Fatalf("the change of class %d is not logged", b.Class)
			}
			if at := cl.Stamp; at < end {
				t.Fatalf("class %+v was logged before %d", cl, end)
			}
		}
		if end = s.States.Log.End(); len(s.States.ids) > len(s.States.List) {
			t.Fatalf("%d states of %d classes", len(s.States.ids), len(s.States.List))
		}
		s.MustRelease("u")
		if pool.Class != class || !slices.Equal(s.States.List[class].Pools, []int32{0, 3}) {
			t.Fatalf("an empty node is in class %d of %v, was %d", pool.Class, s.States.List[pool.Class].Pools, class)
		}
		most = max(most, len(s.States.List))
	}
	if most < KeptVacant || most > KeptVacant*3/2 {
		t.Errorf("%d classes for six pools", most)
	}
	queued := 0
	for _, q := range s.States.queued {
		if q {
			queued++
		}
	}
	if queued != len(s.States.vacant) {
		t.Errorf("%d classes are noted as vacant, and %d are listed", queued, len(s.States.vacant))
	}
}

// A GPU with one slice, or one turn, has all of it free or nothing.
func TestGPUsOfOnePart(t *testing.T) {
	n := oneOfEach("n")
	n.GPUs[0].Slices, n.GPUs[1].Replicas = 1, 1
	s := clusterOf(t, n)
	for i, take := range []Take{{GPU: 0, Milli: 1, Slices: 1}, {GPU: 1, Replicas: 1}} {
		p := s.Nodes["n"].Pools[i]
		if p.Free != 1000 || p.GPUs[0].Part(&s.Kinds[i]) != forecast.NewPart(1000, 1000) {
			t.Errorf("GPU %d has %d free", i, p.Free)
		}
		s.mustApply(t, Usage{ID: "u", NodeID: "n", Takes: []Take{take}})
		if compute, memory := take.Allocates(&s.Kinds[i]); p.Free != 0 || memory != 1000 || p.Used != (compute+1000)/2 {
			t.Errorf("GPU %d: %d free, %d used, and its memory is %d", i, p.Free, p.Used, memory)
		}
		if got := take.Promised(&s.Kinds[i]); got != []int64{1, 1000}[i] || int64(p.GPUs[0].Busy) != got {
			t.Errorf("GPU %d promises %d, and %d is busy", i, got, p.GPUs[0].Busy)
		}
		if got := ChargeOf(&s.Kinds[i], take).Milli; got != 1000 {
			t.Errorf("GPU %d costs %d", i, got)
		}
		s.MustRelease("u")
	}
	if got := (&GPUState{Milli: 300, Slices: 1}).Part(&s.Kinds[0]); got != forecast.NewPart(300, 1000) {
		t.Errorf("with all memory and some compute free it is %v", got)
	}
}

// What is booked is a copy: a list of takes may be used again.
func TestWhatIsBookedIsACopy(t *testing.T) {
	s := clusterOf(t, oneOfEach("n"))
	takes := []Take{{GPU: 0, Milli: 100, Slices: 1}}
	s.mustApply(t, Usage{ID: "u", NodeID: "n", Takes: takes})
	takes[0] = Take{GPU: 1, Replicas: 1}
	s.MustRelease("u")
	if g := s.Nodes["n"].Pools[0].GPUs[0]; g.Milli != 1000 || g.Slices != 16 {
		t.Errorf("after it %+v", g)
	}
}

// An alloc takes the place of work that counts as gone, all that it held.
func TestServesWithoutSomeWork(t *testing.T) {
	n := oneOfEach("n")
	for i := range n.GPUs {
		n.GPUs[i].Device = &constraint.Device{Vendor: "nvidia", Type: []string{"slice", "shared", "gpu"}[i], Name: "T4"}
	}
	s := clusterOf(t, n)
	s.mustApply(t,
		Usage{ID: "a", NodeID: "n", CPUMHz: 6000, Takes: []Take{{GPU: 0, Milli: 600, Slices: 10}, {GPU: 1, Replicas: 3}}},
		Usage{ID: "b", NodeID: "n", MemoryMiB: 15_000, Takes: []Take{{GPU: 1, Replicas: 1}, {GPU: 2, Milli: 1000}}},
	)
	block := func(kind string, count, milli int64) Blocks {
		return Blocks{Devices: []Block{{Device: kind, Count: count, Milli: milli}}}
	}
	for _, c := range []struct {
		alloc Blocks
		want  string // without which work
	}{
		{Blocks{CPUMHz: 4000, MemoryMiB: 5000}, "none a b"}, {Blocks{CPUMHz: 4001}, "a"}, {Blocks{MemoryMiB: 5001}, "b"}, {Blocks{CPUMHz: 10_001}, ""},
		{block("slice", 6, 0), "none a b"}, {block("slice", 7, 1), "a"}, {block("slice", 1, 401), "a"}, {block("slice", 16, 0), "a"}, {block("slice", 17, 0), ""},
		{block("shared", 1, 0), "a b"}, {block("shared", 3, 0), "a"}, {block("shared", 4, 0), ""}, {block("gpu", 1, 0), "b"},
	} {
		got := ""
		for _, id := range []string{"none", "a", "b"} {
			if s.Serves("n", &c.alloc, func(u *Usage) bool { return u.ID == id }) {
				got += " " + id
			}
		}
		if got = strings.TrimPrefix(got, " "); got != c.want {
			t.Errorf("%+v is served without %q, want %q", c.alloc, got, c.want)
		}
	}
	if s.Serves("m", &Blocks{}, nil) {
		t.Error("a node that is not there serves")
	}
}
