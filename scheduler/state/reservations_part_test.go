// SPDX-License-Identifier: MPL-2.0

package state

import (
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// A reservation counts on its node until a job claims it, and is over when its time is up.
func TestReservationsOfNodes(t *testing.T) {
	kept := func(id, node string, left time.Duration, by string) *record.Reservation {
		return &record.Reservation{ID: id, Usage: place.Usage{ID: id, NodeID: node}, ExpiresAt: noon.Add(left), ClaimedBy: by}
	}
	for name, row := range map[string]struct {
		kept  []*record.Reservation
		nodes []string
		until time.Duration // on node a; 0: not
		over  int
	}{
		"none":            {nil, nil, 0, 0},
		"the last counts": {[]*record.Reservation{kept("1", "a", 1, ""), kept("2", "a", 3, ""), kept("3", "a", 2, "")}, []string{"a"}, 3, 0},
		"of two nodes":    {[]*record.Reservation{kept("1", "b", 5, ""), kept("2", "a", 3, "")}, []string{"a", "b"}, 3, 0},
		"one is claimed":  {[]*record.Reservation{kept("1", "a", 5, oneJob.String()), kept("2", "a", 3, "")}, []string{"a"}, 3, 0},
		"all are":         {[]*record.Reservation{kept("1", "a", 5, oneJob.String())}, nil, 0, 0},
		"one is over":     {[]*record.Reservation{kept("1", "b", 0, ""), kept("2", "a", 1, "")}, []string{"a", "b"}, 1, 1},
	} {
		l, claimed := newReservations(atNoon), 0
		for _, r := range row.kept {
			if l.put(r); r.ClaimedBy != "" {
				claimed++
			}
		}
		until := time.Time{}
		if row.until > 0 {
			until = noon.Add(row.until)
		}
		if !slices.Equal(l.ReservedNodes(), row.nodes) || l.AnyReserved() != (len(row.nodes) > 0) || !l.ReservedUntil("a").Equal(until) {
			t.Errorf("%s: reserved are %q, a until %s", name, l.ReservedNodes(), l.ReservedUntil("a"))
		}
		if len(l.over()) != row.over || len(l.Reservations()) != len(row.kept)-row.over || len(l.claimedBy(oneJob)) != claimed {
			t.Errorf("%s: %d are over, %d last, %d are claimed", name, len(l.over()), len(l.Reservations()), len(l.claimedBy(oneJob)))
		}
	}
}
