package decide

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// gang is a group of so many whole GPUs that start together.
func gang(job string, count, priority int) admit.Ask {
	a := ask(job, "1", count)
	a.Gang, a.Priority = true, priority
	return a
}

func sixGPUs() []*nomad.Node { return []*nomad.Node{machine("a", 2), machine("b", 2), machine("c", 2)} }

// fill shows so many allocs of a job, each with a whole GPU, from a position on.
func (b *bench) fill(a admit.Ask, from, count int) {
	for i := from; i < from+count; i++ {
		b.run(a, fmt.Sprintf("alloc-%s-%d", a.JobID, i), string(rune('a'+i/2)), i%2, 0, 16)
	}
}

// Two trainings of four on six GPUs: never do both hold three.
func TestAGangStartsTogetherOrNotAtAll(t *testing.T) {
	b := newBench(t, "", sixGPUs()...)
	first, second := gang("first", 4, 50), gang("second", 4, 50)
	if d := b.decide(t, first); d.Hold != nil || len(b.book.flights) != 4 {
		t.Fatalf("%+v, %d flights", d, len(b.book.flights))
	}
	b.register(first)
	d := b.decide(t, second)
	if d.Hold == nil || d.Hold.Kind != view.WaitsForRoom || d.Hold.Sentence != "its 4 allocs start together, and there is room for 2" {
		t.Fatalf("got %+v", d.Hold)
	}
	if len(b.book.flights) != 4 {
		t.Errorf("what is held holds %d GPUs", len(b.book.flights)-4)
	}
	b.register(second)
	b.fill(first, 0, 4)
	b.block(second, 4)
	b.letTimePass()
	b.end("alloc-first-0")
	if due := b.book.NextDue(nil, true); due != nil {
		t.Errorf("three GPUs are free, and yet %+v", due)
	}
	b.end("alloc-first-1")
	due := b.book.NextDue(nil, true)
	if due == nil || due.Job.ID != "second" || !due.Revision.Retry {
		t.Fatalf("four GPUs are free, and due is %+v", due)
	}
	again, err := b.Revise(t.Context(), []admit.Ask{reread(second, d)}, due.Revision)
	if err != nil || again == nil || again[0].Hold != nil || len(b.book.flights) != 4 {
		t.Errorf("%+v, %v, %d flights", again, err, len(b.book.flights))
	}
}

// Several groups of a job are one gang, and a minimum lets it start with fewer.
func TestAGangOfSeveralGroups(t *testing.T) {
	b := newBench(t, "", sixGPUs()...)
	b.fill(b.tenant(t, "tenant", 50, "a", 0, 0, 16), 1, 2) // three GPUs are left
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
		if held != row.held || len(b.book.flights) != 0 {
			t.Errorf("with a minimum of %d, %d groups are held: %+v", row.least, held, d)
		}
		if row.held == 2 && !strings.Contains(d[0].Hold.Sentence, "it starts together with group g: its 3 allocs") {
			t.Errorf("the chief waits for %q", d[0].Hold.Sentence)
		}
	}
}

// Nobody is evicted for a gang that could not start then, and for one that could
// all are evicted at once.
func TestAGangIsEvictedForAsAWhole(t *testing.T) {
	for name, row := range map[string]struct{ protected, victims int }{"it can start": {2, 4}, "one rank could never start": {3, 0}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, quick, sixGPUs()...)
			for i := range 6 {
				priority := 20
				if i < row.protected {
					priority = 90
				}
				b.tenant(t, fmt.Sprintf("tenant-%d", i), priority, string(rune('a'+i/2)), i%2, 0, 16)
			}
			a := gang("gang", 4, 80)
			if d := b.decide(t, a); d.Hold == nil {
				t.Fatalf("got %+v", d)
			}
			b.register(a)
			b.block(a, 4)
			b.letTimePass()
			due := b.book.NextDue(nil, true)
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
				b.book.Promise(p)
			}
			for i, v := range due.Evict.Victims {
				b.stop(v.AllocID)
				if next := b.book.NextDue(nil, true); next != nil {
					t.Errorf("while %d stop: %+v", i+1, next)
				}
			}
			for _, v := range due.Evict.Victims {
				b.end(v.AllocID)
			}
			due = b.book.NextDue(nil, true)
			if due == nil || due.Job.ID != "gang" || !due.Revision.Retry {
				t.Fatalf("the room is there, and due is %+v", due)
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
			b := newBench(t, quick, machine("a", 2), machine("b", 2), machine("c", 1))
			low := gang("low", 4, 20)
			b.decide(t, low)
			b.register(low)
			b.fill(low, 0, 4)
			b.tenant(t, "single", row.single, "c", 0, 0, 16)
			b.waits(t, "waiting", "1", 80)
			due := b.book.NextDue(nil, true)
			if due == nil || due.Evict == nil || len(due.Evict.Victims) != row.victims || due.Evict.Victims[0].Gang != row.gang {
				t.Fatalf("due is %+v", due)
			}
		})
	}
}

// A gang of which Nomad started only a part, or that lost a rank, goes back as one.
func TestHalfAGangGoesBack(t *testing.T) {
	b := newBench(t, "", sixGPUs()...)
	a := gang("gang", 4, 50)
	b.decide(t, a)
	b.register(a)
	b.fill(a, 0, 3)
	b.clock.at = b.clock.at.Add(aloft)
	b.block(a, 1)
	b.book.Heard()
	b.book.Expire()
	if due := b.book.NextDue(nil, true); due != nil {
		t.Fatalf("Nomad may be about to place the rest, and yet %+v", due)
	}
	b.tenant(t, "elsewhere", 50, "b", 1, 0, 16)
	b.clock.at = b.clock.at.Add(aloft + gangPatience)
	b.book.Heard()
	b.book.Expire()
	due := b.book.NextDue(nil, true)
	if due == nil || due.Evict == nil || len(due.Evict.Victims) != 3 || due.Revision.Hold == nil {
		t.Fatalf("due is %+v", due)
	}
	d := b.book.records[keyOf(a)].Groups["g"].Decision
	held, err := b.Revise(t.Context(), []admit.Ask{reread(a, d)}, due.Revision)
	if err != nil || held == nil || held[0].Hold == nil {
		t.Errorf("got %+v, %v", held, err)
	}
	elastic := gang("elastic", 4, 50)
	elastic.GangMin = 3
	e := newBench(t, "", sixGPUs()...)
	e.decide(t, elastic)
	e.register(elastic)
	e.fill(elastic, 0, 3)
	e.block(elastic, 1)
	e.clock.at = e.clock.at.Add(aloft + gangPatience)
	e.book.Heard()
	e.book.Expire()
	if due := e.book.NextDue(nil, true); due != nil && due.Evict != nil {
		t.Errorf("three of four are enough, and yet %+v", due)
	}
}
