// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"math/bits"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Whose work a request may evict, by what the work and the request are. The request is of
// priority 50 and asks for the GPU that the work holds.
func TestWhoseWorkMayGo(t *testing.T) {
	type change = func(*cluster.Usage)
	job := func(namespace, name string) change {
		return func(u *cluster.Usage) { u.Namespace, u.Job = namespace, name }
	}
	ofJob := func(r *fit.Request) { r.Namespace, r.Job = "prod", "web" }
	for _, c := range []struct {
		name     string
		priority int
		work     change
		request  func(*fit.Request)
		want     bool
	}{
		{name: "lower priority", priority: 49, want: true},
		{name: "equal priority", priority: 50},
		{name: "higher priority", priority: 51},
		{name: "pinned", priority: 10, work: func(u *cluster.Usage) { u.Pinned = true }},
		{name: "in its minimum run time", priority: 10, work: func(u *cluster.Usage) { u.MinRun = 61 * time.Minute }},
		{name: "at the end of it", priority: 10, work: func(u *cluster.Usage) { u.MinRun = time.Hour }, want: true},
		{name: "of a gang", priority: 10, work: func(u *cluster.Usage) { u.Gang = "g" }, want: true},
		{name: "of a gang, where gangs are spared", priority: 10, work: func(u *cluster.Usage) { u.Gang = "g" }, request: func(r *fit.Request) { r.SpareGangs = true }},
		{name: "of no gang, where gangs are spared", priority: 10, request: func(r *fit.Request) { r.SpareGangs = true }, want: true},
		{name: "of the same job", priority: 10, work: job("prod", "web"), request: ofJob},
		{name: "of a job of that name in another namespace", priority: 10, work: job("test", "web"), request: ofJob, want: true},
		{name: "of another job", priority: 10, work: job("prod", "db"), request: ofJob, want: true},
		{name: "of no job, like the request", priority: 10, want: true},
		{name: "spent, of its own queue", priority: 10, work: func(u *cluster.Usage) { u.Spent = true }},
		{name: "spent, of another queue", priority: 10, work: func(u *cluster.Usage) { u.Spent, u.Queue = true, "other" }, want: true},
		{name: "to be reclaimed", priority: 90, work: func(u *cluster.Usage) { u.Reclaim = true }, request: func(r *fit.Request) { r.OnlyIdle = true }, want: true},
		{name: "not to be reclaimed", priority: 10, request: func(r *fit.Request) { r.OnlyIdle = true }},
		{name: "on a GPU of another model", priority: 10, request: func(r *fit.Request) { r.Models = []string{"T4"} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t, placetest.Node("n1", "A100", 1))
			if c.work == nil {
				c.work = func(*cluster.Usage) {}
			}
			s.hold("work", "n1", 0, 1000, c.priority, c.work)
			r := s.ask("1", "", 50)
			if c.request != nil {
				c.request(r)
			}
			if got := s.victims(r); c.want != slices.Equal(got, []string{"work"}) {
				t.Errorf("victims %q", got)
			}
			var k Gains
			if got := s.gained(&k, r, noon); c.want != (got == 1) {
				t.Errorf("%d nodes would do", got)
			}
			s.snap.MustRelease("work")
			if got := s.gained(&k, r, noon); got != 0 {
				t.Errorf("%d nodes would do after evictions without any work", got)
			}
		})
	}
}

// What is spared does not go, and neither does what may not be moved where work is moved, of
// whatever priority.
func TestWhatIsSparedStays(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 2))
	s.hold("a", "n1", 0, 1000, 10)
	s.hold("b", "n1", 1, 1000, 90)
	r := s.ask("1", "", 50)
	e := New(s.snap, s.rules(), r, fit.NewShape(r, s.snap), noon, map[string]bool{"a": true})
	if found := e.Best(); found != nil {
		t.Errorf("victims %+v, and the only one is spared", found)
	}
	e = s.eviction(r, noon)
	e.Movable = func(u *cluster.Usage) bool { return u.ID == "b" }
	sets := e.Sets(s.snap.Nodes["n1"].Pools[0])
	if len(sets) == 0 || len(sets[0].Victims) != 1 || sets[0].Victims[0].ID != "b" {
		t.Errorf("sets %+v, want the one that may be moved", sets)
	}
}

// Of three nodes the victims are where the priority is lowest, then where they are fewest, then where
// the least work is lost; the pool's place is last.
func TestVictimsAreTheCheapest(t *testing.T) {
	for _, c := range []struct {
		name string
		hold func(s *scene)
		want []string
	}{
		{"the lowest priority", func(s *scene) {
			s.hold("a", "n1", 0, 1000, 20, since(1))
			s.hold("b", "n2", 0, 500, 10, since(100))
			s.hold("c", "n2", 0, 500, 10, since(100))
		}, []string{"b", "c"}},
		{"the fewest", func(s *scene) {
			s.hold("a", "n1", 0, 500, 10, since(1))
			s.hold("b", "n1", 0, 500, 10, since(1))
			s.hold("c", "n2", 0, 1000, 10, since(100))
		}, []string{"c"}},
		{"the least work lost", func(s *scene) {
			s.hold("a", "n1", 0, 1000, 10, since(100))
			s.hold("b", "n2", 0, 1000, 10, since(1))
		}, []string{"b"}},
		{"what was saved is not lost", func(s *scene) {
			s.hold("a", "n1", 0, 1000, 10, since(10))
			s.hold("b", "n2", 0, 1000, 10, since(100), func(u *cluster.Usage) { u.WorkSaved = 99 * time.Minute })
		}, []string{"b"}},
		{"the first node", func(s *scene) {
			s.hold("a", "n2", 0, 1000, 10, since(10))
			s.hold("b", "n1", 0, 1000, 10, since(10))
		}, []string{"b"}},
	} {
		s := newScene(t, placetest.Node("n1", "A100", 1), placetest.Node("n2", "A100", 1), placetest.Node("n3", "T4", 0))
		c.hold(s)
		got := s.victims(s.ask("1", "", 50))
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%s: victims %q, want %q", c.name, got, c.want)
		}
	}
}

// Gains are remembered apart for claimants that may evict different work.
func TestGainsAreOfTheClaimant(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 1), placetest.Node("n2", "A100", 1), placetest.Node("n3", "A100", 1))
	s.hold("low", "n1", 0, 1000, 10)
	s.hold("middle", "n2", 0, 1000, 30)
	s.hold("idle", "n3", 0, 1000, 90, func(u *cluster.Usage) { u.Reclaim = true })
	var k Gains
	for range 3 {
		for priority, want := range map[int]int{10: 0, 20: 1, 30: 1, 40: 2, 95: 3} {
			if got := s.gained(&k, s.ask("1", "", priority), noon); got != want {
				t.Errorf("for priority %d %d nodes would do, want %d", priority, got, want)
			}
		}
		idle := s.ask("1", "", 5)
		idle.OnlyIdle = true
		if got := s.gained(&k, idle, noon); got != 1 {
			t.Errorf("%d nodes would do without what is idle, want 1", got)
		}
	}
	if len(k.kept) != keptGains {
		t.Errorf("gains of %d claimants are kept, want %d", len(k.kept), keptGains)
	}
}

// A queue at its limit can only take from its own work, as much as it is over.
func TestQueuesAtTheirLimitGiveUpTheirOwn(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 3))
	s.keep(quota.Queue{Name: "own", GuaranteeMilli: 1000, LimitMilli: 2000}, quota.Queue{Name: "other", GuaranteeMilli: 1000})
	s.hold("own1", "n1", 0, 1000, 10, inQueue("own"))
	s.hold("own2", "n1", 1, 1000, 20, inQueue("own"))
	s.hold("other1", "n1", 2, 1000, 1, inQueue("other"))
	if got := s.victims(s.ask("1", "own", 50)); !slices.Equal(got, []string{"own1"}) {
		t.Errorf("victims %q, want the queue's own of the lowest priority", got)
	}
	s.snap.MustRelease("own2")
	if got := s.victims(s.ask("1", "own", 0)); got != nil {
		t.Errorf("victims %q, though there is room within the limit", got)
	}
}

func TestCombinationsAreAllSets(t *testing.T) {
	for _, c := range []struct{ n, k, want int }{{4, 2, 6}, {8, 4, 70}, {8, 1, 8}, {3, 3, 1}, {4, 0, 0}, {9, 4, 0}, {16, 2, 0}} {
		var last uint64
		got := 0
		for set := range combinations(c.n, c.k) {
			if bits.OnesCount64(set) != c.k || set>>c.n != 0 || set <= last {
				t.Errorf("%d of %d: %b after %b", c.k, c.n, set, last)
			}
			last = set
			got++
		}
		if got != c.want {
			t.Errorf("%d of %d are %d sets, want %d", c.k, c.n, got, c.want)
		}
	}
}

// How many of the largest make up for what is missing.
func TestLargestMakeUpForWhatIsMissing(t *testing.T) {
	for _, c := range []struct {
		list    []int64
		missing int64
		want    int
	}{{nil, 0, 0}, {nil, 1, 1}, {[]int64{1, 5, 3}, 0, 0}, {[]int64{1, 5, 3}, 5, 1}, {[]int64{1, 5, 3}, 6, 2}, {[]int64{1, 5, 3}, 9, 3}, {[]int64{1, 5, 3}, 10, 4}, {[]int64{1}, -3, 0}} {
		if got := largest(c.list, c.missing, func(v int64) int64 { return v }); got != c.want {
			t.Errorf("%d of %v: %d, want %d", c.missing, c.list, got, c.want)
		}
	}
}

// Pools are looked at for moves in the order of the GPU that is missing there, those without any
// work or that could never take the task not at all.
func TestTheNearestPoolsComeFirst(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 1), placetest.Node("n2", "A100", 1), placetest.Node("n3", "A100", 1), placetest.Node("n4", "A100", 1), placetest.Node("n5", "T4", 1), placetest.Node("n6", "A100", 0))
	s.hold("much", "n1", 0, 900, 10)
	s.hold("little", "n2", 0, 300, 10)
	s.hold("some", "n3", 0, 600, 10)
	s.hold("other", "n5", 0, 100, 10)
	r := s.ask("0.8", "", 50)
	r.Models = []string{"A100"}
	var got []string
	for _, b := range s.eviction(r, noon).Nearest() {
		got = append(got, b.Node.Spec.ID)
	}
	if want := []string{"n2", "n3", "n1"}; !slices.Equal(got, want) {
		t.Errorf("nearest are %q, want %q", got, want)
	}
}

// On a pool where evictions do not help there is no set; else the cheapest, and the cheapest victim
// that is enough alone.
func TestSetsOfAPool(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 1), placetest.Node("n2", "A100", 1))
	s.hold("firm", "n1", 0, 900, 90)
	s.hold("weak", "n1", 0, 100, 10)
	s.hold("a", "n2", 0, 300, 10)
	s.hold("b", "n2", 0, 300, 10)
	s.hold("one", "n2", 0, 400, 20)
	e := s.eviction(s.ask("0.4", "", 50), noon)
	if got := e.Sets(s.snap.Nodes["n1"].Pools[0]); got != nil {
		t.Errorf("sets %+v where nothing helps", got)
	}
	var got []string
	for _, set := range e.Sets(s.snap.Nodes["n2"].Pools[0]) {
		for _, u := range set.Victims {
			got = append(got, u.ID)
		}
		got = append(got, "/")
	}
	if slices.Sort(got[:2]); !slices.Equal(got, []string{"a", "b", "/", "one", "/"}) {
		t.Errorf("sets %q", got)
	}
}

// Of several victims that it takes on one node, and of nodes that take as many, those go that are of the
// queue whose turn is last, whatever is lost: a set is as dear as the first of its queues.
func TestSeveralVictimsAreOfTheQueueThatIsLast(t *testing.T) {
	queues := []quota.Queue{{Name: "owner", GuaranteeMilli: 1000}, {Name: "greedy", GuaranteeMilli: 100}, {Name: "modest", GuaranteeMilli: 400}}
	for _, c := range []struct {
		name  string
		nodes int
		work  []string // by node: halves or quarters of a GPU, of a queue
		want  []string
	}{
		{"on one node", 1, []string{"modest", "greedy", "modest", "greedy"}, []string{"n1-1", "n1-3"}},
		{"on one node, the last first", 1, []string{"greedy", "modest", "greedy", "modest"}, []string{"n1-0", "n1-2"}},
		{"on two nodes", 2, []string{"modest", "greedy", "modest", "greedy", "greedy", "greedy", "modest", "greedy"}, []string{"n2-0", "n2-1"}},
	} {
		var nodes []cluster.Node
		for i := range c.nodes {
			nodes = append(nodes, placetest.Node([]string{"n1", "n2"}[i], "A100", 1))
		}
		s := newScene(t, nodes...)
		s.keep(queues...)
		for i, queue := range c.work {
			node := nodes[i/4].ID
			minutes := 10
			if queue == "greedy" {
				minutes = 100
			}
			s.hold(node+"-"+string(rune('0'+i%4)), node, 0, 250, 50, inQueue(queue), since(minutes))
		}
		got := s.victims(s.ask("0.5", "owner", 50))
		slices.Sort(got)
		if c.nodes == 2 { // any two of the greedy queue's
			for _, id := range got {
				if u := s.snap.Usages[id]; u.Queue != "greedy" {
					t.Errorf("%s: %s of %s goes", c.name, id, u.Queue)
				}
			}
			continue
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: victims %q, want %q", c.name, got, c.want)
		}
	}
}

// How much GPU is missing on a pool at least: per GPU the scarcer of compute and memory, for each that is
// not idle.
func TestMissingMilli(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 2))
	for _, c := range []struct {
		ask         string
		gpus        int
		idle        uint8
		milli, free int32 // compute and memory slices free on a GPU in use
		want        int32
	}{
		{"0.5", 1, 0, 200, 80, 300}, {"0.5", 1, 0, 500, 40, 0}, {"0.5", 1, 0, 500, 32, 100}, {"0.5", 1, 1, 0, 0, 0},
		{"0.5", 2, 1, 200, 80, 300}, {"0.5", 2, 0, 200, 80, 600}, {"1", 2, 1, 0, 0, 1000}, {"1", 1, 2, 0, 0, 0},
	} {
		p := cluster.Evictable{Idle: c.idle, Slices: 80}
		p.Partly.Milli, p.Partly.Slices = c.milli, c.free
		r := s.ask(c.ask, "", 0)
		r.GPUs = c.gpus
		sh := fit.NewShape(r, s.snap)
		if got := missingMilli(&p, sh, sh.Need(s.snap, 0)); got != c.want {
			t.Errorf("%d times %s with %d idle, %d milli and %d slices free: %d missing, want %d", c.gpus, c.ask, c.idle, c.milli, c.free, got, c.want)
		}
	}
}

// How many victims it takes at least, for CPU, memory and GPUs each by itself.
func TestVictimsThatItTakesAtLeast(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 3))
	for i := range 2 {
		s.hold(string(rune('a'+i)), "n1", 0, 300, 10)
	}
	for i := range 3 {
		s.hold(string(rune('u'+i)), "n1", 1, 100, 10)
	}
	for _, c := range []struct {
		ask  string
		gpus int
		cpu  int64
		want int
	}{
		{"1", 1, 1000, 0}, {"1", 2, 1000, 2}, {"1", 3, 1000, 5}, {"0.5", 2, 1000, 0}, {"0.5", 3, 1000, 1}, {"0.9", 2, 1000, 2}, {"0.9", 3, 1000, 4}, {"1", 1, 60_000, 1}, {"1", 1, 61_000, 2}, {"1", 2, 63_000, 4},
	} {
		r := s.ask(c.ask, "", 50)
		r.GPUs, r.CPUMHz = c.gpus, c.cpu
		e := s.eviction(r, noon)
		b := s.snap.Nodes["n1"].Pools[0]
		if got := e.trial(b).atLeast(e.candidates(b)); got != c.want {
			t.Errorf("%d times %s and %d MHz: %d victims at least, want %d", c.gpus, c.ask, c.cpu, got, c.want)
		}
	}
}

// Work that holds parts of two GPUs counts for both.
func TestWorkOnSeveralGPUsCountsForEach(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 2))
	s.hold("wide", "n1", 0, 600, 10, func(u *cluster.Usage) {
		u.Takes = append(u.Takes, cluster.Take{GPU: 1, Milli: 600, Slices: 48})
	})
	s.hold("a", "n1", 0, 300, 10)
	s.hold("b", "n1", 1, 300, 10)
	r := s.ask("0.6", "", 50)
	r.GPUs = 2
	e, b := s.eviction(r, noon), s.snap.Nodes["n1"].Pools[0]
	if got := e.trial(b).atLeast(e.candidates(b)); got != 1 {
		t.Errorf("%d victims at least, want 1", got)
	}
	if got := s.victims(r); !slices.Equal(got, []string{"wide"}) {
		t.Errorf("victims %q", got)
	}
}

// Of as many on one node those go that lose the least, also where others would free more.
func TestSeveralVictimsLoseTheLeast(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 1))
	s.hold("a", "n1", 0, 300, 10, since(100))
	s.hold("b", "n1", 0, 300, 10, since(100))
	s.hold("c", "n1", 0, 200, 10, since(1))
	s.hold("d", "n1", 0, 200, 10, since(1))
	got := s.victims(s.ask("0.4", "", 50))
	if slices.Sort(got); !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("victims %q, want those that started last", got)
	}
}

// Work without a queue keeps its priority where there are quotas.
func TestWorkWithoutAQueueKeepsItsPriority(t *testing.T) {
	s := newScene(t, placetest.Node("n1", "A100", 1))
	s.keep(quota.Queue{Name: "owner", GuaranteeMilli: 1000})
	s.hold("work", "n1", 0, 1000, 30)
	for priority, want := range map[int]int{20: 0, 30: 0, 40: 1} {
		if got := s.victims(s.ask("1", "", priority)); len(got) != want {
			t.Errorf("for priority %d victims %q", priority, got)
		}
	}
}
