// SPDX-License-Identifier: MPL-2.0

package leader_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// turnover is what a service's planner holds for it.
func turnover(s *servicetest.Service) (rate float64) {
	s.State.Do(func(tx *state.Tx) { rate = tx.Planner().Turnover() })
	return rate
}

// arrived is how many tasks jobs have asked for.
func arrived(s *servicetest.Service) (tasks int) {
	s.State.Do(func(tx *state.Tx) { tasks = len(tx.Demand()) })
	return tasks
}

// What runs already when a replica comes up has not started then.
func TestWhatRunsAlreadyIsNoStart(t *testing.T) {
	c, err := config.Parse("test.hcl", nil)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	s := state.New(c, func() time.Time { return now })
	changes := []nomad.Change{{Node: servicetest.Machine("a", 8)}}
	for i := range 100 {
		changes = append(changes, nomad.Change{Alloc: &nomad.Alloc{ID: fmt.Sprint(i), Namespace: "default", Job: "j", Group: "g", NodeID: "id-a", Created: now}})
	}
	rate := func() (r float64) {
		s.Do(func(tx *state.Tx) { r = tx.Planner().Turnover() })
		return r
	}
	s.Apply(changes, 1)
	s.Heard()
	if got := rate(); got != 1 {
		t.Errorf("with 100 allocs that ran already turnover begins with %v, want 1", got)
	}
	s.Apply([]nomad.Change{{Alloc: &nomad.Alloc{ID: "new", Namespace: "default", Job: "j", Group: "g", NodeID: "id-a", Created: now}}}, 2)
	if got := rate(); got != 1-1.0/500 {
		t.Errorf("after a start turnover is %v, want %v", got, 1-1.0/500)
	}
}

// The service counts tasks that come, start and end as a replay of them does, whether they are
// allocations of one job, jobs, or dispatched; and the next leader goes on with that.
func TestTheServiceLearnsAsAReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a dispatch is waited for
		s := servicetest.New(t, "", servicetest.Machine("a", 8))
		replay := place.NewPlanner(place.NewSnapshot(), place.PolicyBalanced, place.DefaultWeights())
		replay.ExpectEnds(1)
		group := servicetest.Ask("many", "2G", 5)
		s.Submit(t, group)
		s.Register(group)
		for i := range 5 {
			s.Run(group, fmt.Sprint("many-", i), "a", i, 0, 2)
			replay.Started()
		}
		s.Tenant(t, "one", 50, "a", 5, 0, 1)
		replay.Started()
		parent := servicetest.Ask("parent", "1G", 1)
		parent.Later = true
		s.Submit(t, parent)
		for i := range 3 {
			child := parent
			child.JobID, child.Later, child.Child = fmt.Sprint("child-", i), false, true
			child.Was = &admit.Earlier{Hold: "room: its turn", Tasks: []admit.TaskDecision{{Task: child.Tasks[0].Task, Devices: []admit.Device{{Name: "nvidia/slice", Count: 1}}}}}
			if _, err := s.Revise(t.Context(), []admit.Ask{child}, decide.Revision{Group: child.Group, Align: true}); err != nil {
				t.Fatal(err)
			}
		}
		s.End("alloc-one")
		replay.Ended()
		if got := arrived(s); got != 5+1+3 {
			t.Errorf("%d tasks have arrived, want 9", got)
		}
		if got, want := turnover(s), replay.Turnover(); math.Abs(got-want) > 1e-9 {
			t.Errorf("the turnover is %v, a replay's %v", got, want)
		}

		if err := s.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		next := servicetest.After(t, s, time.Second, "", servicetest.Machine("a", 8))
		if err := next.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if arrived(next) != arrived(s) || turnover(next) != turnover(s) {
			t.Errorf("the next leader knows of %d tasks and a turnover of %v, the last one of %d and %v", arrived(next), turnover(next), arrived(s), turnover(s))
		}
	})
}
