// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// What is promised is booked until it is kept, taken back, or too old.
func TestAssumed(t *testing.T) {
	for name, row := range map[string]struct {
		then        func(*servicetest.Service)
		left, slice int
	}{
		"nothing happens": {func(*servicetest.Service) {}, 2, 5},
		"an alloc of the group on that node": {func(s *servicetest.Service) {
			s.Run(servicetest.Ask("one", "1G", 1), "alloc", "b", 0, 0, 1)
		}, 1, 2 + 1},
		"an alloc of the group elsewhere": {func(s *servicetest.Service) {
			s.Run(servicetest.Ask("one", "1G", 1), "alloc", "c", 0, 0, 1)
		}, 1, 3},
		"an alloc of another group": {func(s *servicetest.Service) {
			a := servicetest.Ask("one", "1G", 1)
			a.Group = "h"
			s.Run(a, "alloc", "c", 0, 0, 1)
		}, 2, 5},
		"an alloc of another job": {func(s *servicetest.Service) {
			s.Run(servicetest.Ask("other", "1G", 1), "alloc", "c", 0, 0, 1)
		}, 2, 5},
		"Nomad finds no room for it": {func(s *servicetest.Service) {
			s.Pass(time.Second)
			s.Block(servicetest.Ask("one", "1G", 1), 1)
		}, 0, 0},
		"Nomad found no room for it before": {func(s *servicetest.Service) {
			s.Clock.At = s.Clock.At.Add(-time.Second)
			s.Block(servicetest.Ask("one", "1G", 1), 1)
		}, 2, 5},
		"Nomad finds room for it": {func(s *servicetest.Service) {
			s.Pass(time.Second)
			s.Block(servicetest.Ask("one", "1G", 1), 0)
		}, 2, 5},
		"Nomad finds no room for another": {func(s *servicetest.Service) {
			s.Pass(time.Second)
			s.Block(servicetest.Ask("other", "1G", 1), 1)
		}, 2, 5},
		"the job is stopped": {func(s *servicetest.Service) {
			s.State.Apply([]nomad.Change{{Job: &nomad.Job{Index: 99, Key: one, Stopped: true}}}, 99)
		}, 0, 0},
		"the job is purged": {func(s *servicetest.Service) {
			s.State.Apply([]nomad.Change{{JobGone: &one}}, 99)
		}, 0, 0},
		"it is forgotten":    {func(s *servicetest.Service) { s.State.Do(func(tx *state.Tx) { tx.Forget(one) }) }, 0, 0},
		"another is":         {func(s *servicetest.Service) { s.State.Do(func(tx *state.Tx) { tx.Forget(other) }) }, 2, 5},
		"its group is":       {func(s *servicetest.Service) { s.State.Do(func(tx *state.Tx) { tx.Forget(one, "g") }) }, 0, 0},
		"another group is":   {func(s *servicetest.Service) { s.State.Do(func(tx *state.Tx) { tx.Forget(one, "h") }) }, 2, 5},
		"another's group is": {func(s *servicetest.Service) { s.State.Do(func(tx *state.Tx) { tx.Forget(other, "g") }) }, 2, 5},
		"the node changes":   {func(s *servicetest.Service) { s.State.Apply([]nomad.Change{{Node: servicetest.Machine("b", 2)}}, 99) }, 2, 5},
		"the node goes, and comes back": {func(s *servicetest.Service) {
			s.State.Apply([]nomad.Change{{NodeGone: "id-b"}}, 99)
			s.State.Apply([]nomad.Change{{Node: servicetest.Machine("b", 1)}}, 100)
		}, 2, 5},
		"not seen for a time": {func(s *servicetest.Service) { s.Pass(state.Unseen); s.Expire() }, 2, 5},
		"not seen for longer": {func(s *servicetest.Service) { s.Pass(state.Unseen + 1); s.Expire() }, 0, 0},
		"not placed for a time": {func(s *servicetest.Service) {
			s.Register(servicetest.Ask("one", "1G", 2))
			s.Pass(state.Unplaced)
			s.Expire()
		}, 2, 5},
		"not placed for longer": {func(s *servicetest.Service) {
			s.Register(servicetest.Ask("one", "1G", 2))
			s.Pass(state.Unplaced + 1)
			s.Expire()
		}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1), servicetest.Machine("c", 1))
			s.State.Do(func(tx *state.Tx) {
				tx.Assume(one, "g", on("a", 2), false)
				tx.Assume(one, "g", on("b", 3), false)
			})
			before := read(s, func(r *state.Reader) uint64 { return r.Capacity.Epoch() })
			row.then(s)
			n := read(s, func(r *state.Reader) int { return r.Capacity.Assumed(one, "g") })
			any := read(s, func(r *state.Reader) bool { return len(r.Capacity.AssumedOf(one)) > 0 })
			if n != row.left || len(s.AllAssumed()) != row.left || any != (row.left > 0) {
				t.Errorf("%d are left, any: %v; want %d", n, any, row.left)
			}
			if got := bookedOn(s, "a") + bookedOn(s, "b"); got != int64(row.slice) {
				t.Errorf("%d slices are booked, want %d", got, row.slice)
			}
			if after := read(s, func(r *state.Reader) uint64 { return r.Capacity.Epoch() }); (after == before) != (name == "nothing happens") && row.left == 0 {
				t.Errorf("epoch %d, before %d", after, before)
			}
		})
	}
}

// What room is made for outlives evaluations that find none yet.
func TestKeptPromisesOutliveEvaluations(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	s.State.Do(func(tx *state.Tx) { tx.Assume(one, "g", on("a", 2), true) })
	s.Pass(time.Second)
	s.Block(servicetest.Ask("one", "1G", 1), 1)
	wantSlices(t, s, "a", 2, "after an evaluation")
}

// A rollback brings back what was promised to the job, and nothing of others.
func TestSavepoint(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	s.State.Do(func(tx *state.Tx) {
		tx.Reserve(&record.Reservation{ID: "r", Namespace: "default", Usage: named(on("b", 4), "r"), ExpiresAt: s.Clock.At.Add(minutes(5))})
		tx.Assume(one, "g", on("a", 2), true)
		tx.Assume(other, "g", on("a", 1), false)
		rollback := tx.Savepoint(one)
		tx.Forget(one)
		tx.Assume(one, "h", on("b", 7), false)
		closed := tx.Open(tx.Capacity.Reservation("r"))
		tx.Claim("r", one)
		closed()
		rollback()
	})
	wantSlices(t, s, "a", 3, "after a rollback")
	wantSlices(t, s, "b", 4, "after a rollback")
	kept := 0
	for _, a := range s.AllAssumed() {
		if a.Kept && a.Job == one && a.Group == "g" {
			kept++
		}
	}
	if kept != 1 || len(s.AllAssumed()) != 2 {
		t.Errorf("got %+v", s.AllAssumed())
	}
	s.State.Do(func(tx *state.Tx) { // a claim that was there before stays
		closed := tx.Open(tx.Capacity.Reservation("r"))
		tx.Claim("r", one)
		closed()
		tx.Savepoint(one)()
	})
	wantSlices(t, s, "b", 0, "after a rollback to a claim")
}

// What is tried and taken back, again and again, does not make a promise last longer.
func TestARollbackDoesNotRenewAPromise(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	s.Register(servicetest.Ask("one", "1G", 2))
	s.State.Do(func(tx *state.Tx) {
		tx.Assume(one, "g", on("a", 2), true)
		tx.Assume(one, "g", on("b", 3), true)
	})
	before := s.AllAssumed()
	for range 3 {
		s.Pass(state.Unplaced / 3)
		s.State.Do(func(tx *state.Tx) {
			rollback := tx.Savepoint(one)
			tx.Forget(one)
			rollback()
		})
		s.Expire()
	}
	byID := func(x, y state.Assumed) int { return strings.Compare(x.Usage.ID, y.Usage.ID) }
	after := s.AllAssumed()
	slices.SortFunc(before, byID)
	slices.SortFunc(after, byID)
	if !reflect.DeepEqual(before, after) {
		t.Errorf("promised are %+v, and were %+v", after, before)
	}
	s.Pass(1)
	s.Expire()
	if left := s.AllAssumed(); len(left) != 0 {
		t.Errorf("after their time there are %+v", left)
	}
}

// Room that is made for a job stays its own, on all nodes, while something that began to stop in
// time stops on one of them.
func TestRoomIsKeptWhileVictimsStop(t *testing.T) {
	for name, row := range map[string]struct {
		then func(*servicetest.Service)
		left int
	}{
		"nothing stops":   {func(*servicetest.Service) {}, 0},
		"one stops":       {func(s *servicetest.Service) { s.Stop("alloc-victim") }, 2},
		"one has stopped": {func(s *servicetest.Service) { s.Stop("alloc-victim"); s.End("alloc-victim") }, 0},
		"one stops for too long": {func(s *servicetest.Service) {
			s.Stop("alloc-victim")
			s.Pass(minutes(30) - state.Unplaced)
		}, 0},
		"one begins to in time": {func(s *servicetest.Service) { s.Pass(state.Unplaced); s.Stop("alloc-victim") }, 2},
		"one begins to later":   {func(s *servicetest.Service) { s.Pass(state.Unplaced + 1); s.Stop("alloc-victim") }, 0},
		"one stops elsewhere":   {func(s *servicetest.Service) { s.Stop("alloc-elsewhere") }, 0},
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1), servicetest.Machine("c", 1))
		s.Tenant(t, "victim", 10, "a", 0, 0, 4)
		s.Tenant(t, "elsewhere", 10, "c", 0, 0, 4)
		s.Register(servicetest.Ask("one", "1G", 2))
		s.Register(servicetest.Ask("other", "1G", 1))
		s.State.Do(func(tx *state.Tx) {
			tx.Assume(one, "g", on("a", 2), true)
			tx.Assume(one, "g", on("b", 3), true)
			tx.Assume(other, "g", on("a", 1), false) // found, not made
		})
		row.then(s)
		s.Pass(state.Unplaced + 1)
		s.Expire()
		left := read(s, func(r *state.Reader) int { return r.Capacity.Assumed(one, "g") })
		if left != row.left || len(s.AllAssumed()) != left {
			t.Errorf("%s: %d of the job are left, want %d, of all: %+v", name, left, row.left, s.AllAssumed())
		}
	}
}

// Of what has not started, the first to be booked goes first in its queue: neither a node that
// comes back nor a rollback mixes promises up.
func TestPromisesKeepTheirOrder(t *testing.T) {
	s := servicetest.New(t, "queue \"q\" {\n gpus = 1\n}", servicetest.Machine("a", 1))
	claims := func() (ids []string) {
		s.State.Do(func(tx *state.Tx) {
			for _, c := range tx.Planner().Snapshot().Claims("q") {
				ids = append(ids, c.ID)
			}
		})
		return ids
	}
	for i := range 8 {
		s.State.Do(func(tx *state.Tx) {
			for _, key := range []nomad.JobKey{one, other} {
				u := on("a", 1)
				u.Queue = "q"
				tx.Assume(key, "g", u, i%2 == 0)
			}
		})
		s.Pass(time.Second)
	}
	before := claims()
	s.State.Do(func(tx *state.Tx) {
		rollback := tx.Savepoint(one)
		tx.Assume(one, "h", on("a", 1), false)
		rollback()
	})
	if after := claims(); len(before) != 16 || !slices.Equal(before, after) {
		t.Errorf("after a rollback the order is %v, and was %v", after, before)
	}
	s.State.Apply([]nomad.Change{{NodeGone: "id-a"}}, 99)
	if left := claims(); len(left) != 0 {
		t.Errorf("%v are booked on a node that is gone", left)
	}
	s.State.Apply([]nomad.Change{{Node: servicetest.Machine("a", 1)}}, 100)
	if after := claims(); !slices.Equal(before, after) {
		t.Errorf("with the node back the order is %v, and was %v", after, before)
	}
}
