package decide

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

func TestPlacementsCountUntilNomadShowsThem(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	first := ask("first", "10G", 1)
	if d := b.decide(t, first); !slices.Equal(d.Preferred, []string{"id-a"}) {
		t.Fatalf("preferred %v", d.Preferred)
	}
	// Nomad does not show the first job yet, and still its room is gone.
	second := ask("second", "10G", 1)
	if d := b.decide(t, second); len(d.Preferred) != 0 || d.Hold != nil || !strings.Contains(strings.Join(d.Explanation, " "), "wait for room") {
		t.Errorf("the second job was given the same room: %+v", d)
	}
	b.register(first)
	b.run(first, "alloc-1", "a", 0, 0, 10)
	if len(b.book.flights) != 0 {
		t.Errorf("%d flights after the alloc landed", len(b.book.flights))
	}
	if d := b.decide(t, ask("third", "6G", 1)); len(d.Preferred) != 1 {
		t.Errorf("what is left is not given away: %+v", d)
	}
}

func TestPromisesThatNobodyKeepsEnd(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	b.decide(t, ask("never-arrives", "10G", 1))
	b.clock.at = b.clock.at.Add(unseen + time.Second)
	b.book.Heard()
	b.book.Expire()
	if d := b.decide(t, ask("next", "10G", 1)); len(d.Preferred) != 1 {
		t.Errorf("the room is still gone: %+v", d)
	}
}

// Nomad deletes the allocs of a purged job with it and tells of none, and
// starts others in their room at once. What was decided meanwhile about a job of
// the same name stays.
func TestAPurgedJobTakesItsAllocsAlong(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	a := ask("job", "10G", 1)
	b.decide(t, a)
	b.register(a)
	b.run(a, "alloc", "a", 0, 0, 10)
	key := nomad.JobKey{Namespace: "default", ID: "job"}
	b.book.Apply([]nomad.Change{{JobGone: &key}}, b.index)
	if err := b.Purge(t.Context()); err != nil || len(b.store.items) != 1 {
		t.Errorf("a decision of this moment was deleted: %d are left, %v", len(b.store.items), err)
	}
	if d := b.decide(t, ask("next", "16G", 1)); len(d.Preferred) != 1 {
		t.Errorf("the room is still gone: %+v", d)
	}
	b.clock.at = b.clock.at.Add(unseen)
	b.book.Heard()
	if err := b.Purge(t.Context()); err != nil || len(b.store.items) != 1 || b.book.records[key] != nil {
		t.Errorf("%d decisions are left, %v", len(b.store.items), err)
	}
}

// A node that changes takes its usage with it. Once, releasing the usage
// emptied the very map that was to be booked again, and a full GPU looked
// free after the first measurement.
func TestUsageSurvivesAChangedNode(t *testing.T) {
	b := newBench(t, "placement {\n measured = 0.5\n}", machine("a", 1))
	first := ask("first", "10G", 1)
	b.decide(t, first)
	b.register(first)
	b.run(first, "alloc-1", "a", 0, 0, 10)
	b.decide(t, ask("in-flight", "2G", 1))
	b.book.Measured("id-a", nomad.Measurements{"GPU-a-0": {Milli: 700, MemoryMiB: 9000}})
	again := machine("a", 1)
	again.Index++
	b.book.Apply([]nomad.Change{{Node: again}}, 99)
	if d := b.decide(t, ask("next", "5G", 1)); len(d.Preferred) != 0 {
		t.Errorf("room was given twice: %+v", d)
	}
	if d := b.decide(t, ask("small", "4G", 1)); len(d.Preferred) != 1 {
		t.Errorf("what is left is not given away: %+v", d)
	}
}

// TestBookKeepsCount lets jobs come, land, end and nodes change at random, and
// compares the books with what the allocs add up to.
func TestBookKeepsCount(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	b := newBench(t, "queue \"q\" {\n gpus = 100\n namespaces = [\"default\"]\n}", machine("a", 2), machine("b", 2))
	type running struct {
		id              string
		ask             admit.Ask
		node            string
		gpu, from, size int
	}
	var live []running
	used := map[string]bool{}
	for i := range 2000 {
		switch random.IntN(4) {
		case 0, 1:
			size := 1 + random.IntN(6)
			a := ask(fmt.Sprintf("j%d", i), fmt.Sprintf("%dG", size), 1)
			b.decide(t, a)
			b.register(a)
			node, index := []string{"a", "b"}[random.IntN(2)], random.IntN(2)
			for from := 0; from+size <= 16; from++ {
				free := true
				for k := range size {
					free = free && !used[instance(node, index, from+k)]
				}
				if !free {
					continue
				}
				for k := range size {
					used[instance(node, index, from+k)] = true
				}
				r := running{fmt.Sprintf("alloc-%d", i), a, node, index, from, size}
				b.run(a, r.id, node, index, from, size)
				live = append(live, r)
				break
			}
		case 2:
			if len(live) > 0 {
				k := random.IntN(len(live))
				r := live[k]
				b.end(r.id)
				for s := range r.size {
					delete(used, instance(r.node, r.gpu, r.from+s))
				}
				live = append(live[:k], live[k+1:]...)
			}
		case 3:
			again := machine([]string{"a", "b"}[random.IntN(2)], 2)
			b.book.Apply([]nomad.Change{{Node: again}}, 0)
		}
		if random.IntN(10) == 0 {
			b.clock.at = b.clock.at.Add(time.Minute)
			b.book.Heard()
			b.book.Expire()
		}
		want := map[string]int64{}
		for _, r := range live {
			want[r.node] += int64(r.size)
		}
		for _, f := range b.book.flights {
			want[strings.TrimPrefix(f.usage.NodeID, "id-")] += f.usage.Takes[0].Slices
		}
		var sum place.Charge
		for _, node := range []string{"a", "b"} {
			var got int64
			for _, u := range b.book.snap.UsagesOn("id-" + node) {
				got += u.Takes[0].Slices
				sum = sum.Plus(b.book.snap.Charge(u.NodeID, u.Takes))
			}
			if got != want[node] {
				t.Fatalf("step %d: node %s holds %d slices in the book, want %d", i, node, got, want[node])
			}
		}
		if got := b.book.quotas.Used(b.book.snap, "q"); got != sum {
			t.Fatalf("step %d: the queue is charged %+v, its work costs %+v", i, got, sum)
		}
	}
}
