// SPDX-License-Identifier: MPL-2.0

package state

import (
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
		kept []*record.Reservation
		onA  int // unclaimed on node a
		over int
	}{
		"none":           {nil, 0, 0},
		"of one node":    {[]*record.Reservation{kept("1", "a", 1, ""), kept("2", "a", 3, ""), kept("3", "a", 2, "")}, 3, 0},
		"of two nodes":   {[]*record.Reservation{kept("1", "b", 5, ""), kept("2", "a", 3, "")}, 1, 0},
		"one is claimed": {[]*record.Reservation{kept("1", "a", 5, oneJob.String()), kept("2", "a", 3, "")}, 1, 0},
		"all are":        {[]*record.Reservation{kept("1", "a", 5, oneJob.String())}, 0, 0},
		"one is over":    {[]*record.Reservation{kept("1", "b", 0, ""), kept("2", "a", 1, "")}, 1, 1},
	} {
		l, claimed := newReservations(atNoon), 0
		for _, r := range row.kept {
			if l.put(r); r.ClaimedBy != "" {
				claimed++
			}
		}
		if len(l.on("a")) != row.onA || len(l.over()) != row.over || len(l.Reservations()) != len(row.kept) || len(l.claimedBy(oneJob)) != claimed {
			t.Errorf("%s: %d on a, %d are over, %d of all, %d are claimed", name, len(l.on("a")), len(l.over()), len(l.Reservations()), len(l.claimedBy(oneJob)))
		}
	}
}
