package decide

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

func TestConfirm(t *testing.T) {
	for name, row := range map[string]struct {
		change func(allocs map[string]*nomad.Alloc)
		index  uint64
		want   bool
		left   int // allocs that the book has afterwards
	}{
		"as believed":                {func(map[string]*nomad.Alloc) {}, 100, true, 2},
		"one is gone without words":  {func(m map[string]*nomad.Alloc) { delete(m, "alloc-1") }, 100, false, 1},
		"one is newer than the list": {func(m map[string]*nomad.Alloc) { delete(m, "alloc-1") }, 1, false, 2},
		"one is over":                {func(m map[string]*nomad.Alloc) { m["alloc-1"].Status = "complete" }, 100, false, 1},
		"one is being stopped":       {func(m map[string]*nomad.Alloc) { m["alloc-1"].Stopping = true }, 100, false, 2},
		"one is new":                 {func(m map[string]*nomad.Alloc) { m["new"] = &nomad.Alloc{ID: "new", Status: "pending"} }, 100, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "", machine("a", 1))
			a := ask("job", "4G", 2)
			b.register(a)
			b.run(a, "alloc-1", "a", 0, 0, 4)
			b.run(a, "alloc-2", "a", 0, 4, 4)
			listed := map[string]*nomad.Alloc{}
			for id, have := range b.book.allocs {
				one := *have
				listed[id] = &one
			}
			row.change(listed)
			var allocs []*nomad.Alloc
			for _, one := range listed {
				allocs = append(allocs, one)
			}
			if got := b.book.Confirm("id-a", allocs, row.index); got != row.want || len(b.book.allocs) != row.left {
				t.Errorf("got %v and %d allocs, want %v and %d", got, len(b.book.allocs), row.want, row.left)
			}
		})
	}
}

// Regression: the allocs of a purged job stayed on the books, and others were
// evicted although there was room.
func TestRoomOfAPhantomIsFree(t *testing.T) {
	b := newBench(t, "preemption {\n min_run_time = \"0s\"\n}", machine("a", 1))
	low, gone := ask("low", "8G", 1), ask("gone", "8G", 1)
	low.Priority, gone.Priority = 20, 90
	b.register(low)
	b.run(low, "alloc-low", "a", 0, 0, 8)
	b.register(gone)
	b.run(gone, "alloc-gone", "a", 0, 8, 8)
	high := ask("high", "8G", 1)
	high.Priority = 80
	b.decide(t, high)
	b.register(high)
	b.block(high, 1)
	b.clock.at = b.clock.at.Add(settled + time.Second)
	if due := b.book.NextDue(nil, true); due == nil || due.Evict == nil {
		t.Fatalf("due is %+v", due)
	}
	if b.book.Confirm("id-a", []*nomad.Alloc{b.book.allocs["alloc-low"]}, 100) {
		t.Error("the phantom was confirmed")
	}
	if due := b.book.NextDue(nil, true); due != nil && due.Evict != nil {
		t.Errorf("there is room, and yet %+v", due.Evict)
	}
}
