// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// gang is a group of so many whole GPUs that start together.
func gang(job string, count, priority int) admit.Ask {
	a := servicetest.Ask(job, "1", count)
	a.Gang, a.Priority = true, priority
	return a
}

func sixGPUs() []*nomad.Node {
	return []*nomad.Node{servicetest.Machine("a", 2), servicetest.Machine("b", 2), servicetest.Machine("c", 2)}
}

// fill shows so many allocs of a job, each with a whole GPU, from a position on.
func fill(b *servicetest.Service, a admit.Ask, from, count int) {
	for i := from; i < from+count; i++ {
		b.Run(a, fmt.Sprintf("alloc-%s-%d", a.JobID, i), string(rune('a'+i/2)), i%2, 0, 16)
	}
}

// Two trainings of four on six GPUs: never do both hold three.
func TestAGangStartsTogetherOrNotAtAll(t *testing.T) {
	b := servicetest.New(t, "", sixGPUs()...)
	first, second := gang("first", 4, 50), gang("second", 4, 50)
	if d := b.Submit(t, first); d.Hold != nil || len(b.AllAssumed()) != 4 {
		t.Fatalf("%+v, %d assumed", d, len(b.AllAssumed()))
	}
	b.Register(first)
	d := b.Submit(t, second)
	if d.Hold == nil || d.Hold.Kind != view.WaitsForRoom || d.Hold.Sentence != "its 4 allocs start together, and there is room for 2" {
		t.Fatalf("got %+v", d.Hold)
	}
	if len(b.AllAssumed()) != 4 {
		t.Errorf("what is held holds %d GPUs", len(b.AllAssumed())-4)
	}
	b.Register(second)
	fill(b, first, 0, 4)
	b.Block(second, 4)
	b.LetTimePass()
	b.End("alloc-first-0")
	if due := b.Next(nil, true); due != nil {
		t.Errorf("three GPUs are free, and yet %+v", due)
	}
	b.End("alloc-first-1")
	due := b.Next(nil, true)
	if due == nil || due.Job.ID != "second" || !due.Revision.Retry {
		t.Fatalf("four GPUs are free, and due is %+v", due)
	}
	again, err := b.Revise(t.Context(), []admit.Ask{servicetest.Reread(second, d)}, due.Revision)
	if err != nil || again == nil || again[0].Hold != nil || len(b.AllAssumed()) != 4 {
		t.Errorf("%+v, %v, %d assumed", again, err, len(b.AllAssumed()))
	}
}

// Several groups of a job are one gang, and a minimum lets it start with fewer.
func TestAGangOfSeveralGroups(t *testing.T) {
	b := servicetest.New(t, "", sixGPUs()...)
	fill(b, b.Tenant(t, "tenant", 50, "a", 0, 0, 16), 1, 2) // three GPUs are left
	workers, chief := gang("job", 3, 50), gang("job", 1, 50)
	chief.Group = "chief"
	for _, row := range []struct{ least, held int }{{0, 2}, {2, 0}} {
		workers.GangMin = row.least
		d, err := b.Decide(t.Context(), []admit.Ask{chief, workers}, true)
		if err != nil {
			t.Fatal(err)
		}
		held := 0
		for i := range d {
			if d[i].Hold != nil {
				held++
			}
		}
		if held != row.held || len(b.AllAssumed()) != 0 {
			t.Errorf("with a minimum of %d, %d groups are held: %+v", row.least, held, d)
		}
		if row.held == 2 && !strings.Contains(d[0].Hold.Sentence, "it starts together with group g: its 3 allocs") {
			t.Errorf("the chief waits for %q", d[0].Hold.Sentence)
		}
	}
}

// No task is evicted for a gang that could not start then, and for one that could
// all are evicted at once.
func TestAGangIsEvictedForAsAWhole(t *testing.T) {
	for name, row := range map[string]struct{ protected, victims int }{"it can start": {2, 4}, "one rank could never start": {3, 0}} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.Quick, sixGPUs()...)
			for i := range 6 {
				priority := 20
				if i < row.protected {
					priority = 90
				}
				b.Tenant(t, fmt.Sprintf("tenant-%d", i), priority, string(rune('a'+i/2)), i%2, 0, 16)
			}
			a := gang("gang", 4, 80)
			if d := b.Submit(t, a); d.Hold == nil {
				t.Fatalf("got %+v", d)
			}
			b.Register(a)
			b.Block(a, 4)
			b.LetTimePass()
			due := b.Next(nil, true)
			if row.victims == 0 {
				if due != nil {
					t.Fatalf("due is %+v", due)
				}
				return
			}
			if due == nil || due.Evict == nil || len(due.Evict.Victims) != row.victims || len(due.Evict.Promises) != 4 || due.Revision.Prefer != "" {
				t.Fatalf("due is %+v", due)
			}
			for _, p := range due.Evict.Promises {
				b.Assume(p)
			}
			for i, v := range due.Evict.Victims {
				b.Stop(v.AllocID)
				if next := b.Next(nil, true); next != nil {
					t.Errorf("while %d stop: %+v", i+1, next)
				}
			}
			for _, v := range due.Evict.Victims {
				b.End(v.AllocID)
			}
			due = b.Next(nil, true)
			if due == nil || due.Job.ID != "gang" || !due.Revision.Retry {
				t.Fatalf("the room is there, and due is %+v", due)
			}
		})
	}
}

// The search for victims for all that start together holds up every admission. So there is
// none for more than 500 allocs.
func TestEvictionsArePlannedForSoManyAllocs(t *testing.T) {
	for count, planned := range map[int]bool{500: true, 501: false} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 8), servicetest.Machine("b", 8), servicetest.Machine("c", 8), servicetest.Machine("d", 8))
			for i := range 32 { // of 16 slices each
				b.Tenant(t, fmt.Sprintf("tenant-%d", i), 20, string(rune('a'+i/8)), i%8, 0, 16)
			}
			all := servicetest.Ask("all", "1G", count)
			all.Gang, all.Priority = true, 80
			if d := b.Submit(t, all); d.Hold == nil {
				t.Fatalf("got %+v", d)
			}
			b.Register(all)
			b.Block(all, count)
			b.LetTimePass()
			if due := b.Next(nil, true); (due != nil && due.Evict != nil && len(due.Evict.Promises) == count) != planned {
				t.Errorf("due is %+v", due)
			}
		})
	}
}

// A gang is no victim while others will do, and then goes as a whole.
func TestAGangIsAVictimAsAWhole(t *testing.T) {
	for name, row := range map[string]struct {
		single, victims int
		gang            bool
	}{"a single job will do": {30, 1, false}, "only a gang will do": {90, 4, true}} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2), servicetest.Machine("b", 2), servicetest.Machine("c", 1))
			low := gang("low", 4, 20)
			b.Submit(t, low)
			b.Register(low)
			fill(b, low, 0, 4)
			b.Tenant(t, "single", row.single, "c", 0, 0, 16)
			b.Waits(t, "waiting", "1", 80)
			due := b.Next(nil, true)
			if due == nil || due.Evict == nil || len(due.Evict.Victims) != row.victims || due.Evict.Victims[0].Gang != row.gang {
				t.Fatalf("due is %+v", due)
			}
		})
	}
}

// A gang of which Nomad started only a part, or that lost a rank, goes back as one.
func TestHalfAGangGoesBack(t *testing.T) {
	b := servicetest.New(t, "", sixGPUs()...)
	a := gang("gang", 4, 50)
	b.Submit(t, a)
	b.Register(a)
	fill(b, a, 0, 3)
	b.Clock.At = b.Clock.At.Add(state.Unplaced)
	b.Block(a, 1)
	b.State.Heard()
	b.Expire()
	if due := b.Next(nil, true); due != nil {
		t.Fatalf("Nomad may be about to place the rest, and yet %+v", due)
	}
	b.Tenant(t, "elsewhere", 50, "b", 1, 0, 16)
	b.Pass(state.Unplaced + time.Minute)
	b.Expire()
	due := b.Next(nil, true)
	if due == nil || due.Evict == nil || len(due.Evict.Victims) != 3 || due.Revision.Hold == nil {
		t.Fatalf("due is %+v", due)
	}
	d := b.Record(servicetest.KeyOf(a)).Groups["g"].Decision
	held, err := b.Revise(t.Context(), []admit.Ask{servicetest.Reread(a, d)}, due.Revision)
	if err != nil || held == nil || held[0].Hold == nil {
		t.Errorf("got %+v, %v", held, err)
	}
	elastic := gang("elastic", 4, 50)
	elastic.GangMin = 3
	e := servicetest.New(t, "", sixGPUs()...)
	e.Submit(t, elastic)
	e.Register(elastic)
	fill(e, elastic, 0, 3)
	e.Block(elastic, 1)
	e.Pass(state.Unplaced + time.Minute)
	e.Expire()
	if due := e.Next(nil, true); due != nil && due.Evict != nil {
		t.Errorf("three of four are enough, and yet %+v", due)
	}
}

// A gang whose allocs must be on different nodes waits for as many nodes, not for as
// many GPUs: Nomad would start a part of it only, for ever again.
func TestDistinctHosts(t *testing.T) {
	for _, row := range []struct {
		name                string
		workers, chiefs     int
		distinct            admit.Distinct
		workersHeld, placed int
	}{
		{"as many nodes", 3, 0, admit.DistinctInGroup, 0, 3},
		{"too few nodes", 4, 0, admit.DistinctInGroup, 1, 0},
		{"groups beside each other", 3, 1, admit.DistinctInGroup, 0, 4},
		{"the job's on different nodes", 3, 1, admit.DistinctInJob, 1, 0},
		{"no such constraint", 4, 1, "", 0, 5},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := servicetest.New(t, "", sixGPUs()...)
			workers := gang("job", row.workers, 50)
			workers.Distinct = row.distinct
			asks := []admit.Ask{workers}
			if row.chiefs > 0 {
				chief := gang("job", row.chiefs, 50)
				chief.Group, chief.Distinct = "chief", row.distinct
				asks = append([]admit.Ask{chief}, asks...)
			}
			decisions, err := b.Decide(t.Context(), asks, false)
			if err != nil {
				t.Fatal(err)
			}
			hold := decisions[len(decisions)-1].Hold
			if (hold != nil) != (row.workersHeld > 0) || len(b.AllAssumed()) != row.placed {
				t.Errorf("held: %+v; %d allocs are placed, want %d", hold, len(b.AllAssumed()), row.placed)
			}
			nodes := map[string]int{}
			for _, f := range b.AllAssumed() {
				nodes[f.Group+f.Usage.NodeID]++
			}
			for at, n := range nodes {
				if n > 1 && row.distinct != "" {
					t.Errorf("%d allocs at %s", n, at)
				}
			}
		})
	}
}

// The node of an alloc that runs takes no second one.
func TestDistinctHostsKeepsToWhatRuns(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 2), servicetest.Machine("b", 2))
	one := servicetest.Ask("job", "1", 1)
	one.Distinct = admit.DistinctInGroup
	b.Submit(t, one)
	b.Register(one)
	b.Run(one, "alloc-1", "a", 0, 0, 16)
	two := one
	two.Count = 2
	if d := b.Submit(t, two); d.Preferred[0] != "id-b" {
		t.Errorf("the second goes to %v", d.Preferred)
	}
}

// A group of a gang is not let go while there is no room for the gang's other groups.
func TestNoGroupOfAGangIsLetGoAlone(t *testing.T) {
	s := servicetest.New(t, "", sixGPUs()...)
	tenant := s.Tenant(t, "tenant", 50, "a", 0, 0, 16)
	fill(s, tenant, 1, 3) // two GPUs are left, and four in all with those of the tenant's last two
	chief, workers := gang("job", 1, 50), gang("job", 3, 50)
	chief.Group = "chief"
	asks := []admit.Ask{chief, workers}
	d, err := s.Decide(t.Context(), asks, false)
	if err != nil || d[0].Hold == nil || d[1].Hold == nil {
		t.Fatalf("got %+v, %v", d, err)
	}
	s.Settle(t.Context(), asks, d, true)
	s.Register(workers)
	registered(s, workers, func(j *nomad.Job) {
		other := j.Groups[0]
		other.Name, other.Count, other.Registered = "chief", 1, s.Record(j.Key).Groups["chief"].Fingerprint
		other.Key, other.Was = chief.Key(), servicetest.WasOf(d[0])
		j.Groups = append(j.Groups, other)
	})
	s.Index++
	s.State.Apply([]nomad.Change{{Blocked: &nomad.Blocked{
		Index: s.Index, EvalID: "e", Key: servicetest.KeyOf(workers), Missing: map[string]int{"chief": 1, "g": 3}, Since: s.Clock.At,
	}}}, s.Index)
	s.LetTimePass()
	if due := s.Next(nil, true); due != nil {
		t.Fatalf("there is room for the chief alone, and due is %+v", due)
	}
	s.End("alloc-tenant-3")
	s.End("alloc-tenant-2")
	if due := s.Next(nil, true); due == nil || due.Job.ID != "job" || !due.Revision.Retry {
		t.Errorf("there is room for all, and due is %+v", due)
	}
}

// For a group whose tasks ask in several device blocks nothing is evicted as for one: the core plans
// a node for each block.
func TestNothingGoesForSeveralBlocksAsForOne(t *testing.T) {
	for blocks, evicts := range map[int]bool{1: true, 2: false} {
		s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2), servicetest.Machine("b", 2))
		for i, name := range []string{"a", "a", "b", "b"} {
			s.Tenant(t, fmt.Sprintf("low-%d", i), 10, name, i%2, 0, 16)
		}
		a := gang("gang", 2, 50)
		for len(a.Tasks) < blocks {
			a.Tasks = append(a.Tasks, a.Tasks[0])
			a.Tasks[1].Task = "u"
		}
		s.Submit(t, a)
		s.Register(a)
		s.Block(a, 2)
		s.Pass(servicetest.Settled)
		if e := evict(s, a); (e != nil) != evicts {
			t.Errorf("with %d blocks: %+v", blocks, e)
		}
	}
}

// What runs of other groups, and what stops, keeps no alloc of a group away that stands apart from
// its own.
func TestDistinctHostsOfAGroupAreItsOwn(t *testing.T) {
	for name, row := range map[string]struct {
		distinct admit.Distinct
		group    string
		stops    bool
		placed   bool
	}{
		"another group":                   {distinct: admit.DistinctInGroup, group: "h", placed: true},
		"another group, of the whole job": {distinct: admit.DistinctInJob, group: "h"},
		"its own":                         {distinct: admit.DistinctInGroup, group: "g"},
		"its own, which stops":            {distinct: admit.DistinctInGroup, group: "g", stops: true, placed: true},
		"another one of the job, stops":   {distinct: admit.DistinctInJob, group: "h", stops: true, placed: true},
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 2))
		a := servicetest.Ask("job", "8G", 1)
		a.Distinct = row.distinct
		first := a
		first.Group = row.group
		s.Submit(t, first)
		s.Register(first)
		s.Run(first, "alloc", "a", 0, 0, 8)
		if row.stops {
			s.Stop("alloc")
		}
		s.LetTimePass()
		s.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(a)) })
		if !row.stops && row.group == "g" {
			a.Count = 2
		}
		if d := s.Submit(t, a); (len(d.Preferred) == 1) != row.placed {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// A gang of which one alloc runs is not decided about as one that is about to start: what runs goes on.
func TestAGangOfWhichOneRunsIsNotHeld(t *testing.T) {
	for running, held := range map[int]bool{0: true, 1: false} {
		s := servicetest.New(t, "", servicetest.Machine("a", 2))
		s.Tenant(t, "tenant", 50, "a", 1, 0, 16)
		chief, workers := gang("job", 1, 50), gang("job", 1, 50)
		chief.Group = "chief"
		asks := []admit.Ask{workers, chief}
		d, err := s.Decide(t.Context(), asks, false)
		if err != nil {
			t.Fatal(err)
		}
		s.Settle(t.Context(), asks, d, true)
		s.Register(workers)
		s.LetTimePass()
		s.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(workers)) })
		if running > 0 {
			s.Run(workers, "alloc", "a", 0, 0, 16)
		}
		for i := range asks {
			asks[i].Was = servicetest.WasOf(d[i])
			asks[i].Was.Hold = ""
		}
		revised, err := s.Revise(t.Context(), asks, decide.Revision{Group: "g", Align: true})
		if err != nil {
			t.Fatal(err)
		}
		g := s.Record(servicetest.KeyOf(workers)).Groups["g"]
		if (g.Decision.Hold != nil) != held {
			t.Errorf("of which %d run: %+v, %+v", running, g.Decision.Hold, revised)
		}
	}
}
