package decide

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// stop shows that Nomad wants an alloc to end; it runs on until it has.
func (b *bench) stop(id string) {
	a := *b.book.allocs[id]
	b.index++
	a.Index, a.Stopping = b.index, true
	b.book.Apply([]nomad.Change{{Alloc: &a}}, b.index)
}

// tenant shows a job that runs on so many slices of a GPU.
func (b *bench) tenant(t *testing.T, id string, priority int, machine string, index, from, slices int) admit.Ask {
	t.Helper()
	a := ask(id, "1G", 1)
	a.Priority = priority
	b.decide(t, a)
	b.register(a)
	b.run(a, "alloc-"+id, machine, index, from, slices)
	return a
}

// waits shows a job that Nomad cannot place.
func (b *bench) waits(t *testing.T, id, request string, priority int) admit.Ask {
	t.Helper()
	a := ask(id, request, 1)
	a.Priority = priority
	b.decide(t, a)
	b.register(a)
	b.block(a, 1)
	b.clock.at = b.clock.at.Add(settled + time.Second)
	b.book.Heard()
	return a
}

const quick = "preemption {\n min_run_time = \"0s\"\n}\n"

// Regression: only the node that fitted best was looked at, so that jobs were held
// for a higher priority beside nodes that nobody waited for; also where the waiting
// one could get no room, and by a priority that its queue does not allow.
func TestAJobIsHeldOnlyForRoomThatAnotherCouldGet(t *testing.T) {
	for name, row := range map[string]struct {
		config   string
		machines []*nomad.Node
		held     bool
	}{
		"the only room is what it waits for": {quick, []*nomad.Node{machine("a", 1)}, true},
		"there is other room":                {quick, []*nomad.Node{machine("a", 1), machine("b", 1)}, false},
		"nothing may be evicted for it":      {"preemption {\n enabled = false\n}\n", []*nomad.Node{machine("a", 1)}, false},
		"its queue caps its priority":        {quick + "queue \"q\" {\n max_priority = 20\n namespaces = [\"default\"]\n}\n", []*nomad.Node{machine("a", 1)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, row.config, row.machines...)
			b.tenant(t, "tenant", 10, "a", 0, 0, 4)
			if len(row.machines) > 1 {
				b.tenant(t, "high", 95, "b", 0, 0, 4)
			}
			b.waits(t, "waiting", "16G", 90)
			a := ask("small", "1G", 1)
			if d := b.decide(t, a); (d.Hold != nil) != row.held || row.held && d.Hold.Kind != view.WaitsForPriority {
				t.Errorf("held: %+v", d.Hold)
			}
		})
	}
}

// A group that has waited for a while keeps room that comes free, also from later
// ones of its own priority: two GPUs were never free beside a stream of one.
func TestALargeGroupIsNotStarvedBySmallOnes(t *testing.T) {
	b := newBench(t, quick, machine("a", 2))
	for i := range 2 {
		a := ask(fmt.Sprintf("short-%d", i), "1", 1)
		a.JobType = "batch"
		b.decide(t, a)
		b.register(a)
		b.run(a, fmt.Sprintf("alloc-%d", i), "a", i, 0, 16)
	}
	large := b.waits(t, "large", "2", 50)
	b.end("alloc-0")
	if d := b.decide(t, ask("at-once", "1", 1)); d.Hold != nil {
		t.Fatalf("the first comer waits although the large one has just come: %+v", d.Hold)
	}
	b.book.dropFlights(nomad.JobKey{Namespace: "default", ID: "at-once"})
	b.clock.at = b.clock.at.Add(patience)
	b.book.Heard()
	d := b.decide(t, ask("later", "1", 1))
	if d.Hold == nil || d.Hold.Sentence != "job large with priority 50 waits for room that this would take" {
		t.Fatalf("got %+v", d.Hold)
	}
	b.end("alloc-1")
	b.run(large, "alloc-large", "a", 0, 0, 16)
	b.book.Apply([]nomad.Change{{Unblocked: &nomad.JobKey{Namespace: "default", ID: "large"}}}, 99)
	later := ask("later", "1", 1)
	b.register(later)
	b.block(later, 1)
	b.letTimePass()
	if due := b.book.NextDue(nil, false); due == nil || due.Job.ID != "later" || !due.Revision.Retry {
		t.Errorf("the hold does not end: %+v", due)
	}
}

// Regression: what was stopping stayed on the books beside the promise of its room,
// so that 13 evictions for one slice each killed 28 jobs.
func TestRoomIsMadeOnce(t *testing.T) {
	b := newBench(t, quick, machine("a", 1), machine("b", 1))
	b.tenant(t, "large", 20, "a", 0, 0, 16)
	b.tenant(t, "other", 30, "b", 0, 0, 16)
	stopped := map[string]bool{}
	for i := range 13 {
		b.waits(t, fmt.Sprintf("one-%02d", i), "1G", 80)
		for due := b.book.NextDue(nil, true); due != nil && due.Evict != nil; due = b.book.NextDue(nil, true) {
			b.book.Promise(due.Evict.Promises[0])
			for _, v := range due.Evict.Victims {
				stopped[v.AllocID] = true
				b.stop(v.AllocID)
			}
		}
	}
	if len(stopped) != 1 || !stopped["alloc-large"] {
		t.Errorf("stopped %v for 13 slices of one GPU", stopped)
	}
}

// What cannot be helped is not asked about at Nomad: nothing is due for it until
// something changes.
func TestWhatHasToWaitIsLeftAlone(t *testing.T) {
	b := newBench(t, quick, machine("a", 1))
	b.tenant(t, "high", 95, "a", 0, 0, 15)
	b.waits(t, "waiting", "16G", 90)
	for i := range 20 {
		b.waits(t, fmt.Sprintf("held-%02d", i), "2G", 50)
	}
	for range 100 {
		b.clock.at = b.clock.at.Add(time.Second)
		b.book.Heard()
		if due := b.book.NextDue(nil, true); due != nil {
			t.Fatalf("nothing can be done, and yet %+v", due)
		}
	}
	b.end("alloc-high")
	if due := b.book.NextDue(nil, false); due != nil && due.Evict != nil {
		t.Errorf("due is %+v", due)
	}
}

// A release needs no eviction, and does not wait behind those that are limited.
func TestReleasesDoNotWaitBehindEvictions(t *testing.T) {
	b := newBench(t, quick+"queue \"q\" {\n gpus = 0.5\n borrow = false\n namespaces = [\"team\"]\n}\n", machine("a", 1), machine("b", 1))
	b.tenant(t, "low", 20, "a", 0, 0, 16)
	b.tenant(t, "stays", 95, "b", 0, 8, 8)
	first, second := ask("first", "8G", 1), ask("second", "8G", 1)
	first.Namespace, second.Namespace, second.Priority = "team", "team", 10
	b.decide(t, first)
	b.register(first)
	b.run(first, "alloc-first", "b", 0, 0, 8)
	b.decide(t, second)
	b.register(second)
	b.block(second, 1)
	b.waits(t, "high", "12G", 90)
	b.end("alloc-first")
	b.letTimePass()
	if due := b.book.NextDue(nil, true); due == nil || due.Job.ID != "second" || !due.Revision.Retry {
		t.Fatalf("due is %+v", due)
	}
	if due := b.book.NextDue(map[string]bool{"team/second": true}, false); due != nil && due.Evict != nil {
		t.Errorf("an eviction although none is allowed now: %+v", due)
	}
}

// Regression: a group of three with priority 90 waited for quota while every new
// single of priority 30 in its queue ran.
func TestALargeGroupIsNotStarvedOfItsQuota(t *testing.T) {
	b := newBench(t, "queue \"q\" {\n gpus = 3\n borrow = false\n namespaces = [\"default\"]\n}\n", machine("a", 2), machine("b", 2))
	single := func(i int) admit.Ask {
		a := ask(fmt.Sprintf("single-%d", i), "1", 1)
		a.Priority = 30
		return a
	}
	for i := range 2 {
		a := single(i)
		b.decide(t, a)
		b.register(a)
		b.run(a, fmt.Sprintf("alloc-%d", i), "a", i, 0, 16)
	}
	large := ask("large", "1", 3)
	large.Priority = 90
	if d := b.decide(t, large); d.Hold == nil || d.Hold.Kind != view.WaitsForQuota {
		t.Fatalf("got %+v", d)
	}
	b.register(large)
	b.block(large, 3)
	later := single(2)
	if d := b.decide(t, later); d.Hold == nil || d.Hold.Sentence != "job large with priority 90 waits for what this would take of the quota" {
		t.Fatalf("a later single takes the quota: %+v", d.Hold)
	}
	b.register(later)
	b.block(later, 1)
	b.end("alloc-0")
	b.end("alloc-1")
	b.letTimePass()
	due := b.book.NextDue(nil, false)
	if due == nil || due.Job.ID != "large" {
		t.Fatalf("due is %+v", due)
	}
	d, err := b.Revise(t.Context(), []admit.Ask{reread(large, b.book.records[keyOf(large)].Groups["g"].Decision)}, due.Revision)
	if err != nil || d == nil || d[0].Hold != nil {
		t.Errorf("got %+v, %v", d, err)
	}
}

// What Nomad refuses, to whoever may not submit, is neither shown nor learned from.
func TestRefusedCallersLeaveNoTrace(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	asks := []admit.Ask{ask("refused", "8G", 1)}
	d, err := b.Decide(t.Context(), asks, false)
	if err != nil {
		t.Fatal(err)
	}
	b.Settle(t.Context(), asks, d, false)
	if _, err := b.Decide(t.Context(), asks, true); err != nil {
		t.Fatal(err)
	}
	if n := len(b.book.log.decisions); n != 0 || len(b.store.items) != 0 {
		t.Errorf("%d decisions are shown, %d stored", n, len(b.store.items))
	}
	b.decide(t, ask("taken", "8G", 1))
	if n := len(b.book.log.decisions); n != 1 {
		t.Errorf("%d decisions are shown of one", n)
	}
}
