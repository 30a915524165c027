// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What comes while room is made for another waits, also where it goes first or nothing is known of the
// other: it starts where there is other room.
func TestWhatComesIntoRoomThatIsKeptWaits(t *testing.T) {
	for name, row := range map[string]struct {
		priority int
		request  string
		free     bool // one more GPU is
		then     func(s *servicetest.Service, gang admit.Ask)
		held     bool
	}{
		"a lower priority":    {priority: 40, request: "1", held: true},
		"the same":            {priority: 50, request: "1", held: true},
		"a higher one":        {priority: 51, request: "1", held: true},
		"more than is made":   {priority: 40, request: "2", held: true},
		"there is other room": {priority: 40, request: "1", free: true},
		"nothing is known of it": {priority: 40, request: "1", held: true, then: func(s *servicetest.Service, gang admit.Ask) {
			s.State.Do(func(tx *state.Tx) { tx.ForgetRecord(servicetest.KeyOf(gang)) })
		}},
		"it is not held": {priority: 40, request: "1", held: true, then: func(s *servicetest.Service, gang admit.Ask) {
			recordedAs(s, gang, func(g *record.Group) { g.Decision.Hold = nil })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			gpus := 2
			if row.free {
				gpus = 3
			}
			s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", gpus))
			for i := range 2 {
				s.Tenant(t, fmt.Sprint("low-", i), 10, "a", i, 0, 16)
			}
			gang := servicetest.Ask("gang", "1", 2)
			if gang.Gang = true; row.free {
				gang = servicetest.Ask("gang", "1", 3)
				gang.Gang = true
			}
			if d := s.Submit(t, gang); d.Hold == nil || d.Hold.Kind != view.WaitsForRoom {
				t.Fatalf("got %+v", d)
			}
			s.Register(gang)
			s.Block(gang, gang.Count)
			s.State.Do(func(tx *state.Tx) {
				for i := range 2 {
					u, _ := tx.Capacity.Usage(fmt.Sprint("alloc-low-", i))
					tx.Assume(servicetest.KeyOf(gang), "g", u, true)
				}
			})
			s.Stop("alloc-low-0")
			s.End("alloc-low-0")
			s.Stop("alloc-low-1")
			if row.then != nil {
				row.then(s, gang)
			}
			a := servicetest.Ask("new", row.request, 1)
			a.Priority = row.priority
			d := s.Submit(t, a)
			if (d.Hold != nil) != row.held {
				t.Errorf("got %+v, held %+v", d.Outcome, d.Hold)
			}
		})
	}
}

// recordedAs changes what is recorded of a job's group.
func recordedAs(s *servicetest.Service, a admit.Ask, change func(*record.Group)) {
	s.State.Do(func(tx *state.Tx) {
		r := tx.Queue.Record(servicetest.KeyOf(a)).Clone()
		g := r.Groups["g"]
		change(&g)
		r.Groups["g"] = g
		tx.Keep(r)
	})
}
