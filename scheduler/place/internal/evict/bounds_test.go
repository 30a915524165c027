// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/ranking"
)

// A set is as dear as its highest priority and as the first of its queues, in whatever order its
// victims are added.
func TestSetsAreAsDearAsTheirFirst(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 8))
	s.keep(quota.Queue{Name: "greedy", GuaranteeMilli: 100}, quota.Queue{Name: "modest", GuaranteeMilli: 4000}, quota.Queue{Name: "middle", GuaranteeMilli: 700})
	for i, queue := range []string{"greedy", "modest", "middle"} {
		s.hold(queue, "n1", i, 1000, 10*(i+1), inQueue(queue), since(i+1))
	}
	s.hold("none", "n1", 3, 500, 5, since(0))
	e := s.eviction(s.ask("1", "modest", 50), noon)
	e.findRanks()
	for _, c := range []struct {
		add   []string
		top   int
		first string
		lost  int64
	}{
		{[]string{"greedy"}, 10, "greedy", 60_000},
		{[]string{"none"}, 5, "", 0},
		{[]string{"greedy", "modest"}, 20, "modest", 180_000},
		{[]string{"modest", "greedy"}, 20, "modest", 180_000},
		{[]string{"middle", "greedy", "none"}, 30, "middle", 240_000},
		{[]string{"none", "greedy", "middle", "modest"}, 30, "modest", 360_000},
	} {
		sp := &Set{}
		var want []*cluster.Usage
		for _, id := range c.add {
			sp.add(s.snap.Usages[id], e)
			want = append(want, s.snap.Usages[id])
		}
		if sp.top != c.top || sp.first != c.first || sp.lost != c.lost || !slices.Equal(sp.Victims, want) {
			t.Errorf("%q: top %d, first %q, %d lost, want %d, %q, %d", c.add, sp.top, sp.first, sp.lost, c.top, c.first, c.lost)
		}
		if got := sp.bound(); got.top != c.top || got.victims != len(c.add) {
			t.Errorf("%q: bound %+v", c.add, got)
		}
		if got, want := e.queuesOf(want), slices.DeleteFunc([]string{"modest", "middle", "greedy", ""}, func(q string) bool {
			return !slices.ContainsFunc(want, func(u *cluster.Usage) bool { return u.Queue == q })
		}); !slices.Equal(got, want) {
			t.Errorf("%q: queues %q, want %q", c.add, got, want)
		}
	}
}

// The least that victims on a pool cost: where the lowest priority does not hold what is missing a
// higher one goes too, and where the largest does not, several.
func TestBoundsOfPools(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 2))
	for _, c := range []struct {
		ask             string
		gpus            int
		milli, slices   int32 // free on a GPU in use
		lowest, largest int32 // GPU that the lowest priority holds, and any usage
		missing         int32
		top, victims    int
	}{
		{"0.5", 1, 200, 80, 300, 300, 300, 10, 1},
		{"0.5", 1, 200, 80, 299, 300, 300, 11, 1},
		{"0.5", 1, 200, 80, 300, 299, 300, 10, 2},
		{"0.5", 1, 200, 80, 300, 1, 300, 10, 300},
		{"0.5", 1, 200, 80, 300, 0, 300, 10, 1},
		{"0.5", 1, 500, 40, 0, 1, 0, 10, 1},
		{"0.5", 1, 500, 39, 12, 100, 12, 10, 1},
		{"0.5", 1, 500, 38, 12, 12, 25, 11, 3},
		{"0.5", 1, 490, 39, 12, 5, 12, 10, 3},
		{"0.5", 2, 500, 39, 20, 24, 24, 11, 1},
		{"1", 1, 999, 80, 1, 1, 1, 10, 1},
	} {
		p := cluster.Evictable{Priority: 10, Youngest: 7, Milli: c.lowest, Largest: c.largest, Slices: 80}
		p.Partly.Milli, p.Partly.Slices = c.milli, c.slices
		r := s.ask(c.ask, "", 0)
		r.GPUs = c.gpus
		sh := fit.NewShape(r, s.snap)
		nd := sh.Need(s.snap, 0)
		if got := missingMilli(&p, sh, nd); got != c.missing {
			t.Errorf("%+v: %d missing", c, got)
		}
		if got := boundOf(&p, sh, nd); got != (bound{top: c.top, victims: c.victims, since: 7}) {
			t.Errorf("%+v: bound %+v", c, got)
		}
		low := lowerBound(&p, 3)
		if low != (target{bound{10, 1, 7}, 3}) || low.compare(target{boundOf(&p, sh, nd), 3}) > 0 {
			t.Errorf("%+v: %+v is no lower bound", c, low)
		}
	}
}

// Which pools are targets at all.
func TestTargets(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 1), placetest.Node("n2", "T4", 1), placetest.Node("cpu", "A100", 0), placetest.Node("empty", "A100", 1))
	s.keep(quota.Queue{Name: "q", GuaranteeMilli: 1000})
	s.hold("a", "n1", 0, 500, 20)
	s.hold("b", "n2", 0, 500, 20)
	if err := s.snap.Apply(cluster.Usage{ID: "c", NodeID: "cpu", CPUMHz: 1000, Priority: 20}); err != nil {
		t.Fatal(err)
	}
	at := func(node string) int { return int(s.snap.Nodes[node].Pools[0].ID) }
	for _, c := range []struct {
		ask      string
		queue    string
		priority int
		onlyIdle bool
		want     []string
	}{
		{"1", "", 22, false, []string{"n1", "n2"}},
		{"1", "", 21, false, []string{"n1", "n2"}},
		{"0.7", "", 21, false, []string{"n1", "n2"}},
		{"0.7", "", 20, false, nil},
		{"0.7", "q", 20, false, []string{"n1", "n2"}},
		{"0.7", "", 5, true, []string{"n1", "n2"}},
		{"0.7(A100)", "", 21, false, []string{"n1"}},
		{"", "", 21, false, []string{"n1", "n2", "cpu"}},
		{"", "", 20, false, nil},
	} {
		var r *fit.Request
		if c.ask == "" {
			r = &fit.Request{ID: "new", CPUMHz: 1000, Queue: c.queue, Priority: c.priority}
		} else {
			r = s.ask(c.ask, c.queue, c.priority)
		}
		r.OnlyIdle = c.onlyIdle
		e := s.eviction(r, noon)
		var got, listed []string
		for _, id := range []string{"n1", "n2", "cpu", "empty"} {
			l, ok := e.target(at(id))
			if !ok {
				continue
			}
			if got = append(got, id); l.id != at(id) || l.since != noon.Add(-time.Hour).Unix() && id != "cpu" {
				t.Errorf("%+v: target %+v for %s", c, l, id)
			}
		}
		for _, l := range e.targets() {
			listed = append(listed, s.snap.Pools[l.id].Node.Spec.ID)
		}
		if slices.Sort(listed); !slices.Equal(got, c.want) || len(listed) != len(c.want) {
			t.Errorf("%+v: targets %q, listed %q", c, got, listed)
		}
	}
}

// Of many pools those with the lowest priority are the most promising, then those of the youngest
// work, then the first; those that could never take the task are none.
func TestTheMostPromisingPools(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var nodes []cluster.Node
		for i := range 45 {
			nodes = append(nodes, placetest.Node(fmt.Sprintf("n%02d", i), "A100", 1))
			if rng.IntN(6) == 0 {
				nodes[i].CPUMHz = 4000
			}
		}
		s := newScene(t, nodes...)
		type entry struct{ priority, minutes, id int }
		var want []entry
		for i, n := range nodes {
			v := entry{rng.IntN(3), rng.IntN(4), i}
			s.hold("u"+n.ID, n.ID, 0, 1000, v.priority, since(v.minutes))
			if n.CPUMHz > 4000 {
				want = append(want, v)
			}
		}
		slices.SortStableFunc(want, func(a, b entry) int {
			if a.priority != b.priority {
				return a.priority - b.priority
			}
			return a.minutes - b.minutes
		})
		r := s.ask("1", "", 50)
		r.CPUMHz = 5000
		got := s.eviction(r, noon).targets()
		if len(got) != searched {
			t.Fatalf("%d targets", len(got))
		}
		for i, l := range got {
			if l.id != want[i].id || l.top != want[i].priority || l.victims != 1 {
				t.Fatalf("seed %d: target %d is %+v, want %+v", seed, i, l, want[i])
			}
		}
	}
}

// Where the pools that promise most give nothing, the others are searched, wherever they stand.
func TestAllPoolsAreSearchedWhereThePromisingGiveNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		at   map[int]int // priority of one victim, by node
		two  map[int]int // of two victims
		want int         // node; -1: none
	}{
		{"the first", map[int]int{0: 20}, nil, 0},
		{"the last", map[int]int{39: 20}, nil, 39},
		{"the lowest priority", map[int]int{0: 30, 20: 20, 39: 25}, nil, 20},
		{"the lowest priority at the end", map[int]int{0: 30, 39: 20}, nil, 39},
		{"the fewest", map[int]int{39: 20}, map[int]int{0: 20, 5: 20}, 39},
		{"the first of equal ones", map[int]int{4: 20, 30: 20}, nil, 4},
		{"nowhere", nil, nil, -1},
		{"not of higher priority", map[int]int{3: 60}, nil, -1},
	} {
		var nodes []cluster.Node
		for i := range 40 {
			nodes = append(nodes, placetest.Node(fmt.Sprintf("n%02d", i), "A100", 1))
		}
		s := newScene(t, nodes...)
		for i, n := range nodes {
			if priority, one := c.at[i]; one {
				s.hold("one"+n.ID, n.ID, 0, 1000, priority)
			} else if priority, two := c.two[i]; two {
				s.hold("left"+n.ID, n.ID, 0, 500, priority)
				s.hold("right"+n.ID, n.ID, 0, 500, priority)
			} else { // there the CPU is of what stays
				s.hold("low"+n.ID, n.ID, 0, 900, 10)
				s.hold("firm"+n.ID, n.ID, 0, 100, 90, func(u *cluster.Usage) { u.CPUMHz = 10_000 })
			}
		}
		r := s.ask("0.9", "", 50)
		r.CPUMHz = 60_000
		got := s.victims(r)
		if want := fmt.Sprintf("onen%02d", c.want); c.want >= 0 && !slices.Equal(got, []string{want}) || c.want < 0 && got != nil {
			t.Errorf("%s: victims %q, want those of node %d", c.name, got, c.want)
		}
	}
}

// Beside the best sets of victims, all sets of the candidates are tried for fewer: none that would do is
// smaller, or as small and cheaper, and it takes no fewer than is said.
func TestFewestOfAllSets(t *testing.T) {
	fewer := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 21))
		s := newScene(t, placetest.Node("n1", "A100", 1+rng.IntN(4)))
		for i := range 9 {
			_ = s.snap.Apply(randomHolder(rng, fmt.Sprint("u", i), len(s.snap.Nodes["n1"].Spec.GPUs))) // some do not fit
		}
		r := s.ask([]string{"0.3", "0.7", "1", "2", "60G", "8G,0.6"}[rng.IntN(6)], "", 35)
		r.CPUMHz, r.MemoryMiB = int64(rng.IntN(60_000)), int64(rng.IntN(200_000))
		e, b := s.eviction(r, noon), s.snap.Nodes["n1"].Pools[0]
		if !e.sh.Could(s.snap, b) || e.trial(b).fits() {
			continue
		}
		candidates := e.candidates(b)
		found := &Set{Pool: b}
		for _, u := range candidates {
			found.add(u, e)
		}
		if len(candidates) == 0 || !e.trial(b).empty(candidates) {
			continue
		}
		var best *Set
		for set := 1<<len(candidates) - 1; set >= 0; set-- { // of as many, those first that hold the first
			room, sp := e.trial(b), &Set{Pool: b}
			for i, u := range candidates {
				if set>>(len(candidates)-1-i)&1 == 1 {
					room.add(u, 1)
					sp.add(u, e)
				}
			}
			if room.fits() && (best == nil || len(sp.Victims) < len(best.Victims) || len(sp.Victims) == len(best.Victims) && e.CompareVictims(sp, best) < 0) {
				best = sp
			}
		}
		if got := e.fewest(b, candidates, found); len(got.Victims) != len(best.Victims) || len(got.Victims) < len(candidates) && !slices.Equal(got.Victims, best.Victims) {
			t.Errorf("seed %d: victims %+v, and %+v would do", seed, got, best)
		} else if len(got.Victims) < len(candidates) {
			fewer++
		}
		if got := e.fewest(b, candidates, best); got != best {
			t.Errorf("seed %d: for the fewest, %+v, come %+v", seed, best, got)
		}
		if got := e.trial(b).atLeast(candidates); got > len(best.Victims) {
			t.Errorf("seed %d: at least %d victims, and %d do", seed, got, len(best.Victims))
		}
		room := e.trial(b)
		before := fmt.Sprint(room.cpu, room.mem, room.gpus)
		for _, rank := range []func(*cluster.Usage) int64{room.value, func(u *cluster.Usage) int64 { return -u.LostMilliSeconds(noon) }} {
			room := e.trial(b)
			room.empty(candidates)
			full := fmt.Sprint(room.cpu, room.mem, room.gpus)
			sp := e.fillBack(room, candidates, rank)
			if fmt.Sprint(room.cpu, room.mem, room.gpus) != full {
				t.Fatalf("seed %d: the room is not as it was", seed)
			}
			left := e.trial(b)
			for _, u := range sp.Victims {
				left.add(u, 1)
			}
			if !left.fits() {
				t.Errorf("seed %d: victims %+v do not do", seed, sp)
			}
			for _, u := range sp.Victims { // each is needed
				if left.add(u, -1); left.fits() {
					t.Errorf("seed %d: %s need not go", seed, u.ID)
				}
				left.add(u, 1)
			}
			for _, u := range sp.Victims {
				left.add(u, -1)
			}
			if got := fmt.Sprint(left.cpu, left.mem, left.gpus); got != before {
				t.Fatalf("seed %d: %s is left, was %s", seed, got, before)
			}
		}
	}
	if fewer < 40 {
		t.Errorf("fewer victims do %d times: that tries little", fewer)
	}
}

// randomHolder holds parts of one or several GPUs of a node.
func randomHolder(rng *rand.Rand, id string, gpus int) cluster.Usage {
	u := cluster.Usage{
		ID: id, NodeID: "n1", Priority: 10 * (1 + rng.IntN(3)), CPUMHz: int64(rng.IntN(12)) * 1000, MemoryMiB: int64(rng.IntN(12)) * 4096,
		Start: noon.Add(-time.Duration(rng.IntN(100)) * time.Minute),
	}
	share := int64(1+rng.IntN(8)) * 100
	for g := range gpus {
		if g == rng.IntN(gpus) {
			u.Takes = append(u.Takes, cluster.Take{GPU: g, Milli: share, Slices: []int64{share * 80 / 1000, 10, 60}[rng.IntN(3)]})
		}
	}
	return u
}

// What a usage frees of what is asked for, and which GPUs it is on.
func TestValuesAndPlacesOfVictims(t *testing.T) {
	s := newScene(t, mixed(placetest.Node("n1", "A100", 3)))
	for i, takes := range [][]cluster.Take{
		{{GPU: 0, Milli: 500, Slices: 8}}, {{GPU: 0, Milli: 5, Slices: 40}, {GPU: 1, Milli: 100, Slices: 8}}, {{GPU: 2, Milli: 1000, Slices: 80}}, nil,
	} {
		if err := s.snap.Apply(cluster.Usage{ID: string(rune('a' + i)), NodeID: "n1", CPUMHz: 3000, Takes: takes}); err != nil {
			t.Fatal(err)
		}
	}
	r := s.ask("0.5", "", 50)
	r.CPUMHz = 2000
	room := s.eviction(r, noon).trial(s.snap.Nodes["n1"].Pools[0])
	none := s.eviction(&fit.Request{ID: "cpu", CPUMHz: 9000}, noon).trial(s.snap.Nodes["n1"].Pools[0])
	for id, want := range map[string]struct {
		value, without int64
		on             uint64
	}{"a": {502_000, 3000, 1}, "b": {142_000, 3000, 3}, "c": {2000, 3000, 0}, "d": {2000, 3000, 0}} {
		u := s.snap.Usages[id]
		if got := room.value(u); got != want.value {
			t.Errorf("%s is worth %d, want %d", id, got, want.value)
		}
		if got := none.value(u); got != want.without {
			t.Errorf("%s is worth %d where no GPU is needed, want %d", id, got, want.without)
		}
		for set := range uint64(4) {
			if got := room.touches(u, set); got != (set&want.on != 0) {
				t.Errorf("%s on GPUs %b: %v", id, set, got)
			}
		}
	}
	if got := bits.OnesCount64(3); got != len(room.gpus) {
		t.Errorf("%d GPUs on the pool", len(room.gpus))
	}
}

// mixed makes the last GPU of a node another model.
func mixed(n cluster.Node) cluster.Node {
	last := len(n.GPUs) - 1
	n.GPUs[last] = placetest.GPU(n.GPUs[last].ID, "T4")
	return n
}

// Work without a queue goes by its priority also for a queue that is over what it was promised.
func TestWorkWithoutAQueueGoesByPriorityBeyondGuarantees(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 1))
	s.keep(quota.Queue{Name: "poor", GuaranteeMilli: 100})
	s.hold("work", "n1", 0, 1000, 30)
	for priority, want := range map[int]int{20: 0, 30: 0, 40: 1} {
		if got := s.victims(s.ask("1", "poor", priority)); len(got) != want {
			t.Errorf("for priority %d victims %q", priority, got)
		}
	}
}

// Only nodes where something changed are looked at again, and those where work is protected no longer.
func TestGainsLookAgainOnlyWhereSomethingChanged(t *testing.T) {
	var nodes []cluster.Node
	for i := range 8 {
		nodes = append(nodes, placetest.Node(fmt.Sprint("n", i), "A100", 1))
	}
	s := newScene(t, nodes...)
	for i, n := range nodes {
		s.hold("u"+n.ID, n.ID, 0, 1000, 10, func(u *cluster.Usage) {
			if i >= 5 {
				u.Start, u.MinRun = noon, time.Duration(i)*time.Hour
			}
		})
	}
	var k Gains
	r := s.ask("1", "", 50)
	look := func(now time.Time) string {
		helps, seen := k.Helps(s.eviction(r, now)), ""
		g := k.kept[len(k.kept)-1]
		for id := range s.snap.Pools {
			seen += map[bool]string{true: ".", false: "?"}[g.nodes[id] != unseenGain]
		}
		for id := range s.snap.Pools {
			helps(int32(id))
		}
		if len(k.kept) != 1 || g.at != s.snap.Each.Log.End() || !g.asked.Equal(now) {
			t.Errorf("%d kept, followed to %d of %d, asked at %s", len(k.kept), g.at, s.snap.Each.Log.End(), g.asked)
		}
		return seen
	}
	soonest := func(want time.Duration, waiting int) {
		t.Helper()
		if g := k.kept[0]; len(g.until) != waiting || waiting > 0 && !g.soonest.Equal(noon.Add(want)) || waiting == 0 && !g.soonest.IsZero() {
			t.Errorf("%d nodes are looked at again, first at %s", len(g.until), g.soonest)
		}
	}
	expect := func(after time.Duration, want string) {
		t.Helper()
		if got := look(noon.Add(after)); got != want {
			t.Errorf("after %s seen %s, want %s", after, got, want)
		}
	}
	expect(0, "????????")
	soonest(5*time.Hour, 3)
	expect(time.Minute, "........")
	s.snap.MustRelease("un2")
	expect(2*time.Minute, "..?.....")
	s.hold("again", "n2", 0, 1000, 10)
	s.snap.MustRelease("un0")
	expect(3*time.Minute, "?.?.....")
	if err := s.snap.AddNode(placetest.Node("n8", "A100", 1)); err != nil {
		t.Fatal(err)
	}
	expect(4*time.Minute, "........?")
	expect(5*time.Hour-1, ".........")
	expect(5*time.Hour, ".....?...")
	soonest(6*time.Hour, 2)
	expect(6*time.Hour, "......?..")
	expect(5*time.Hour, "?????????") // the clock was set back
	soonest(6*time.Hour, 2)
	s.snap.MustRelease("un6") // while it is protected
	expect(5*time.Hour+1, "......?..")
	soonest(6*time.Hour, 1)
	expect(7*time.Hour, ".......?.")
	soonest(0, 0)
}

// Where a log no longer has all that changed, every node is looked at again.
func TestGainsLookAtAllWhereALogIsCutShort(t *testing.T) {
	for _, c := range []string{"pools", "ranks"} {
		s := newScene(t, placetest.Node("n1", "A100", 1), placetest.Node("n2", "A100", 1))
		s.hold("work", "n1", 0, 1000, 10)
		var k Gains
		r := s.ask("1", "", 50)
		k.Helps(s.eviction(r, noon))(0)
		log := &s.snap.Each.Log
		if c == "ranks" {
			log = &s.log
		}
		for range 3 * ranking.Kept {
			log.Add(1)
		}
		g := k.kept[0]
		rules := s.rules()
		rules.Ranked, g.nodes[0] = &s.log, someGain
		if g.follow(s.snap, &rules, noon); g.nodes[0] != unseenGain {
			t.Errorf("the log of %s is cut short, and a node is not looked at again", c)
		}
	}
}

// What a queue at its limit owes counts for compute and for memory, to the last.
func TestNothingFitsWhileTheQueueOwes(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 1))
	room := s.eviction(s.ask("1", "", 50), noon).trial(s.snap.Nodes["n1"].Pools[0])
	for owed, want := range map[quota.Charge]bool{{}: true, {Milli: 1}: false, {MemoryMiB: 1}: false, {Milli: -1, MemoryMiB: 1}: false, {Milli: 1, MemoryMiB: -1}: false, {Milli: -1, MemoryMiB: -1}: true} {
		if room.owed = owed; room.fits() != want {
			t.Errorf("with %+v owed it fits: %v", owed, !want)
		}
	}
}

// Of the claimants that asked, those that asked last are remembered.
func TestGainsOfTheLastClaimants(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 1))
	s.hold("work", "n1", 0, 1000, 10)
	var k Gains
	for _, c := range []struct {
		priority int
		want     []int
	}{{20, []int{20}}, {30, []int{20, 30}}, {40, []int{20, 30, 40}}, {20, []int{30, 40, 20}}, {20, []int{30, 40, 20}}, {40, []int{30, 20, 40}}, {50, []int{20, 40, 50}}, {30, []int{40, 50, 30}}} {
		k.Helps(s.eviction(s.ask("1", "", c.priority), noon))(0)
		var got []int
		for _, g := range k.kept {
			if got = append(got, g.of.priority); g.nodes[0] != someGain {
				t.Errorf("priority %d: what was seen is not remembered", g.of.priority)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("after priority %d kept are %v, want %v", c.priority, got, c.want)
		}
	}
}

// Of equal victims the first goes, work of equal priority never, and nothing helps where nothing may go,
// whatever is free.
func TestEqualVictims(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 3))
	for i, id := range []string{"c", "a", "b"} {
		s.hold(id, "n1", i, 1000, 10)
	}
	if got := s.victims(s.ask("1", "", 50)); !slices.Equal(got, []string{"a"}) {
		t.Errorf("of equal work %q goes", got)
	}
	s = newScene(t, placetest.Node("n1", "A100", 1))
	s.hold("low", "n1", 0, 500, 10)
	s.hold("equal", "n1", 0, 500, 50)
	r := s.ask("1", "", 50)
	if got := s.victims(r); got != nil {
		t.Errorf("%q go, one of them of equal priority", got)
	}
	if err := s.snap.AddNode(placetest.Node("n2", "A100", 2)); err != nil {
		t.Fatal(err)
	}
	s.hold("pinned", "n2", 0, 1000, 10, func(u *cluster.Usage) { u.Pinned = true })
	if e := s.eviction(r, noon); e.helps(s.snap.Nodes["n2"]) {
		t.Error("evictions help where nothing may go")
	}
}

// A set takes the place of another only where it is cheaper, and no search goes on where nothing is lost
// and no target promises better.
func TestOnlyCheaperSetsReplaceOthers(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 1))
	e, b := s.eviction(s.ask("1", "", 50), noon), s.snap.Nodes["n1"].Pools[0]
	set := func(top int, lost int64, victims int) *Set {
		return &Set{Pool: b, top: top, lost: lost, Victims: make([]*cluster.Usage, victims)}
	}
	for _, c := range []struct {
		other *Set
		want  bool
	}{{nil, false}, {set(10, 5, 2), false}, {set(10, 4, 2), true}, {set(10, 6, 2), false}, {set(10, 9, 1), true}, {set(9, 9, 3), true}, {set(11, 0, 1), false}} {
		was := set(10, 5, 2)
		best := was
		if e.consider(&best, c.other); (best != was) != c.want || best != was && best != c.other {
			t.Errorf("%+v replaces the other: %v", c.other, best != was)
		}
	}
	for _, c := range []struct {
		lost         int64
		top, victims int
		want         bool
	}{{0, 10, 2, true}, {1, 10, 2, false}, {0, 10, 1, false}, {0, 9, 3, false}, {0, 10, 3, true}, {0, 11, 1, true}} {
		if got := e.losesNothing(set(10, c.lost, 2), target{bound{top: c.top, victims: c.victims}, 0}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	e.Movable = func(*cluster.Usage) bool { return true } // there the least work lost comes first
	for _, c := range []struct {
		other *Set
		want  int
	}{{set(1, 6, 1), 1}, {set(90, 4, 9), -1}, {set(10, 5, 1), -1}, {set(10, 5, 3), 1}, {set(11, 5, 2), 0}} {
		if got := e.CompareVictims(c.other, set(10, 5, 2)); got != c.want {
			t.Errorf("%+v compares as %d, want %d", c.other, got, c.want)
		}
	}
}

// Of nodes with work of the same job nothing is remembered: it does not evict itself, others may.
func TestGainsOfNodesWithTheSameJob(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 1), placetest.Node("n2", "A100", 1), placetest.Node("n3", "A100", 1))
	for i, job := range []string{"web", "web", "db"} {
		node := fmt.Sprint("n", i+1)
		s.hold(node, node, 0, 1000, 10, func(u *cluster.Usage) { u.Namespace, u.Job = "prod", job })
	}
	var k Gains
	for range 2 {
		r := s.ask("1", "", 50)
		r.Namespace, r.Job = "prod", "web"
		helps := k.Helps(s.eviction(r, noon))
		for id, want := range []bool{false, false, true} {
			if got := helps(int32(id)); got != want || (k.kept[0].nodes[id] != unseenGain) != want {
				t.Errorf("node %d: helps %v, and %d is remembered", id+1, got, k.kept[0].nodes[id])
			}
		}
	}
	if got := s.gained(&k, s.ask("1", "", 50), noon); got != 3 {
		t.Errorf("%d nodes would do for another job", got)
	}
}
