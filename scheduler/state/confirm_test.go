// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

func TestConfirm(t *testing.T) {
	for name, row := range map[string]struct {
		change func(allocs map[string]*nomad.Alloc)
		index  uint64
		want   bool
		left   int // allocs that are believed afterwards
	}{
		"as believed":                {func(map[string]*nomad.Alloc) {}, 100, true, 2},
		"one is gone without words":  {func(m map[string]*nomad.Alloc) { delete(m, "alloc-1") }, 100, false, 1},
		"one is newer than the list": {func(m map[string]*nomad.Alloc) { delete(m, "alloc-1") }, 1, false, 2},
		"one is over":                {func(m map[string]*nomad.Alloc) { m["alloc-1"].Status = "complete" }, 100, false, 1},
		"one is being stopped":       {func(m map[string]*nomad.Alloc) { m["alloc-1"].Stopping = true }, 100, false, 2},
		"one is new":                 {func(m map[string]*nomad.Alloc) { m["new"] = &nomad.Alloc{ID: "new", Status: "pending"} }, 100, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "", servicetest.Machine("a", 1))
			a := servicetest.Ask("job", "4G", 2)
			b.Register(a)
			b.Run(a, "alloc-1", "a", 0, 0, 4)
			b.Run(a, "alloc-2", "a", 0, 4, 4)
			listed := map[string]*nomad.Alloc{}
			for id, have := range allocsOf(b) {
				one := *have
				listed[id] = &one
			}
			row.change(listed)
			var allocs []*nomad.Alloc
			for _, one := range listed {
				allocs = append(allocs, one)
			}
			if got := b.State.Confirm("id-a", allocs, row.index); got != row.want || len(allocsOf(b)) != row.left {
				t.Errorf("got %v and %d allocs, want %v and %d", got, len(allocsOf(b)), row.want, row.left)
			}
		})
	}
}

// Regression: the allocs of a purged job stayed on the books, and others were
// evicted although there was room.
func TestRoomOfAPhantomIsFree(t *testing.T) {
	b := servicetest.New(t, "preemption {\n min_run_time = \"0s\"\n}", servicetest.Machine("a", 1))
	low, gone := servicetest.Ask("low", "8G", 1), servicetest.Ask("gone", "8G", 1)
	low.Priority, gone.Priority = 20, 90
	b.Register(low)
	b.Run(low, "alloc-low", "a", 0, 0, 8)
	b.Register(gone)
	b.Run(gone, "alloc-gone", "a", 0, 8, 8)
	high := servicetest.Ask("high", "8G", 1)
	high.Priority = 80
	b.Submit(t, high)
	b.Register(high)
	b.Block(high, 1)
	b.Clock.At = b.Clock.At.Add(2*time.Second + time.Second)
	if due := b.Next(nil, true); due == nil || due.Evict == nil {
		t.Fatalf("due is %+v", due)
	}
	if b.State.Confirm("id-a", []*nomad.Alloc{allocsOf(b)["alloc-low"]}, 100) {
		t.Error("the phantom was confirmed")
	}
	if due := b.Next(nil, true); due != nil && due.Evict != nil {
		t.Errorf("there is room, and yet %+v", due.Evict)
	}
}

func allocsOf(s *servicetest.Service) map[string]*nomad.Alloc {
	found := map[string]*nomad.Alloc{}
	s.State.View(func(r *state.Reader) {
		for a := range r.Cluster.Allocs() {
			found[a.ID] = a
		}
	})
	return found
}
