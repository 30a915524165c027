// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// TestNothingIsMeasuredForNobody: every measurement is a request to Nomad for every node.
func TestNothingIsMeasuredForNobody(t *testing.T) {
	for _, row := range []struct {
		name   string
		looks  []time.Duration // since the start
		weight int64
		queues []config.Queue
		always bool
		rounds int
	}{
		{name: "nobody looks", rounds: 0},
		{name: "one look, and measurements at once, until it is forgotten", looks: []time.Duration{45 * time.Second}, rounds: 10},
		{name: "two looks, of which the second changes nothing by itself", looks: []time.Duration{45 * time.Second, 50 * time.Second}, rounds: 11},
		{name: "placement goes by what was measured", weight: 500, rounds: 40},
		{name: "all is kept in the ledger", always: true, rounds: 40},
		{name: "a queue says nothing of idle work", queues: []config.Queue{{Name: "q"}}, rounds: 0},
		{name: "a queue wants to know what is idle", queues: []config.Queue{{Name: "q", IdleAfter: time.Hour}}, rounds: 40},
		{name: "a queue has what is idle told", queues: []config.Queue{{Name: "q", IdleAction: config.IdleReport}}, rounds: 40},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := config.Default()
				c.Placement.Weights.MeasuredMilli, c.Queues = row.weight, row.queues
				m, looks := &meters{}, make(chan struct{}, 1)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute+time.Second)
				defer cancel()
				for _, at := range row.looks {
					time.AfterFunc(at, func() { looks <- struct{}{} })
				}
				(&Meter{Reader: m, Meters: m, Config: func() *config.Config { return c }, Looks: looks, Always: row.always}).Run(ctx)
				if rounds := len(m.asked) / 2; rounds != row.rounds {
					t.Errorf("measured %d times, want %d", rounds, row.rounds)
				}
				if len(m.troubles) == 0 {
					t.Error("checkpoints were not read")
				}
			})
		})
	}
}

// Where tasks may burst their nodes are measured for placement, unless the operator does not want
// that. A request to Nomad is made for each, so there are no more than ten a second; more nodes have
// their turn in a later round.
func TestWhereTasksMayBurstIsMeasured(t *testing.T) {
	var many []string
	for i := range 900 {
		many = append(many, fmt.Sprintf("n%03d", i))
	}
	for _, row := range []struct {
		name     string
		bursting []string
		off      bool
		asked    []int // requests in each of three rounds
		nodes    int   // different ones in all
	}{
		{"nothing bursts", nil, false, []int{0, 0, 0}, 0},
		{"one node", []string{"n2"}, false, []int{1, 1, 1}, 1},
		{"hot GPUs are not avoided", []string{"n2"}, true, []int{0, 0, 0}, 0},
		{"as many as may be asked", many[:300], false, []int{300, 300, 300}, 300},
		{"more", many, false, []int{300, 300, 300}, 900},
		{"some more", many[:301], false, []int{300, 300, 300}, 301},
	} {
		c := config.Default()
		if row.off {
			c.Placement.Weights.HeatMilli = 0
		}
		m := &meters{bursting: row.bursting}
		meter := &Meter{Reader: m, Meters: m, Config: func() *config.Config { return c }, Looks: make(chan struct{})}
		seen := map[string]bool{}
		for round, want := range row.asked {
			nodes := meter.nodes()
			if len(nodes) != want {
				t.Errorf("%s: round %d asks %d nodes, want %d", row.name, round, len(nodes), want)
			}
			for _, n := range nodes {
				seen[n] = true
			}
		}
		if len(seen) != row.nodes {
			t.Errorf("%s: %d nodes were asked, want %d", row.name, len(seen), row.nodes)
		}
	}
}

// TestTheFirstLookHasGPUsMeasured: whoever looks need not wait for the next round.
func TestTheFirstLookHasGPUsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, looks := &meters{}, make(chan struct{}, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		looks <- struct{}{}
		(&Meter{Reader: m, Meters: m, Config: config.Default, Looks: looks}).Run(ctx)
		if len(m.asked) != 2 {
			t.Errorf("measured on %v within a second", m.asked)
		}
	})
}

// saving says of checkpoints what is wrong, or nothing, one after the other.
type saving struct {
	meters
	says []string
}

func (s *saving) Checkpoints(context.Context) (map[nomad.JobKey]time.Time, error) {
	why := s.says[0]
	if s.says = s.says[1:]; why != "" {
		return nil, errors.New(why)
	}
	return map[nomad.JobKey]time.Time{}, nil
}

// Trouble with checkpoints is told once while it stays the same, and not where the service ends.
func TestTroubleWithCheckpointsIsToldOnce(t *testing.T) {
	s := &saving{says: []string{"a", "a", "", "a", "b", "b", "a", ""}}
	m := &Meter{Reader: s, Meters: s}
	for range 8 {
		m.readCheckpoints(t.Context())
	}
	if want := []string{"a", "a", "b", "a"}; !slices.Equal(s.troubles, want) || len(s.saved) != 2 {
		t.Errorf("told %q, want %q; heard of them %d times", s.troubles, want, len(s.saved))
	}
	s.says = []string{"c"}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if m.readCheckpoints(ended); len(s.troubles) != 4 {
		t.Errorf("at the end told %q", s.troubles)
	}
}
