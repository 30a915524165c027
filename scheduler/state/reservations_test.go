// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

func named(u place.Usage, id string) place.Usage {
	u.ID = id
	return u
}

func TestReservations(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	keep := func(id, machine string, slices int64, d time.Duration) {
		s.State.Do(func(tx *state.Tx) {
			tx.Reserve(&record.Reservation{ID: id, Namespace: "default", Usage: named(on(machine, slices), id), ExpiresAt: s.Clock.At.Add(d)})
		})
	}
	ids := func() (list string) {
		s.State.View(func(r *state.Reader) {
			for _, one := range r.Capacity.Reservations() {
				list += one.ID + " "
			}
		})
		return list
	}
	keep("y", "a", 2, minutes(2))
	keep("x", "a", 3, minutes(1))
	keep("x", "a", 9, minutes(9)) // known
	keep("old", "a", 5, 0)        // over
	keep("later", "b", 4, minutes(3))
	if ids() != "later x y " {
		t.Errorf("kept are %s", ids())
	}
	wantSlices(t, s, "a", 5, "reserved")
	s.State.Apply([]nomad.Change{{Node: servicetest.Machine("b", 1)}}, 9)
	wantSlices(t, s, "b", 4, "once the node is known")
	s.State.Apply([]nomad.Change{{Node: servicetest.Machine("b", 2)}}, 10)
	wantSlices(t, s, "b", 4, "when the node changes")

	s.State.Do(func(tx *state.Tx) {
		closed := tx.Open(tx.Capacity.Reservation("y"))
		if slicesOf(tx, "a") != 3 {
			t.Errorf("open: %d slices", slicesOf(tx, "a"))
		}
		closed()
	})
	wantSlices(t, s, "a", 5, "not claimed")
	s.State.Do(func(tx *state.Tx) {
		closed := tx.Open(tx.Capacity.Reservation("y"))
		tx.Claim("y", one)
		closed()
	})
	wantSlices(t, s, "a", 3, "claimed")
	s.State.Do(func(tx *state.Tx) { tx.Unclaim(other) })
	wantSlices(t, s, "a", 3, "claimed by another")
	s.State.Do(func(tx *state.Tx) { tx.Unclaim(one) })
	wantSlices(t, s, "a", 5, "given back")

	s.Pass(minutes(1))
	if gone := s.Expire(); len(gone) != 1 || gone[0].ID != "x" {
		t.Errorf("expired: %v", gone)
	}
	wantSlices(t, s, "a", 2, "expired")
	if ids() != "later y " {
		t.Errorf("a minute later: %s", ids())
	}
	s.State.Do(func(tx *state.Tx) {
		if !tx.Release("y") || tx.Release("y") {
			t.Error("released is what there was, once")
		}
	})
	wantSlices(t, s, "a", 0, "released")
}

func slicesOf(tx *state.Tx, machine string) (n int64) {
	for _, u := range tx.Capacity.UsagesOn("id-" + machine) {
		n += u.Takes[0].Slices
	}
	return n
}
