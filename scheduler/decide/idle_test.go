// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// measured lets minutes pass, and shows after each what the tasks of some instances of machine
// a compute.
func measured(s *servicetest.Service, minutes int, milli map[string]int64) {
	for range minutes {
		s.Pass(time.Minute)
		m := nomad.NewMeasurements()
		for instance, use := range milli {
			m.Tasks[instance] = nomad.TaskUse{At: s.Clock.At, Milli: use, MemoryMiB: 100}
		}
		s.State.Measured("id-a", m)
	}
}

// watched is a queue that says what happens to idle work.
func watched(action string) string {
	return servicetest.Quick + "monitor_update_interval = \"1m\"\nqueue \"q\" {\n namespaces = [\"default\"]\n protected = true\n idle_after = \"10m\"\n idle_action = \"" + action + "\"\n}\n"
}

// Work that does not use its GPUs goes, whatever its priority, where its queue has that and a
// job waits that gets the place; and else it stays.
func TestIdleWorkGoesForWhatWaits(t *testing.T) {
	first := servicetest.Instance("a", 0, 0)
	for name, row := range map[string]struct {
		action  string
		config  string
		minutes int
		milli   int64
		request string // of what waits; empty: nothing does
		then    func(s *servicetest.Service)
		goes    bool
	}{
		"it goes":                        {action: "evict", minutes: 11, request: "8G", goes: true},
		"it has not been idle for long":  {action: "evict", minutes: 10, request: "8G"},
		"it computes":                    {action: "evict", minutes: 11, milli: 5, request: "8G"},
		"nothing waits":                  {action: "evict", minutes: 11},
		"what waits would not fit then":  {action: "evict", minutes: 11, request: "2"},
		"it is only told":                {action: "report", minutes: 11, request: "8G"},
		"nothing is ended for a seat":    {action: "suspend", minutes: 11, request: "8G"},
		"preemption is switched off":     {action: "evict", config: "preemption {\n enabled = false\n}\n", minutes: 11, request: "8G"},
		"it has not run for long enough": {action: "evict", config: "preemption {\n min_run_time = \"1h\"\n}\n", minutes: 11, request: "8G"},
		"its use is not known any more":  {action: "evict", minutes: 11, request: "8G", then: func(s *servicetest.Service) { s.Pass(3 * time.Minute) }},
		"it was just used":               {action: "evict", minutes: 11, request: "8G", then: func(s *servicetest.Service) { measured(s, 1, map[string]int64{first: 1}) }},
	} {
		t.Run(name, func(t *testing.T) {
			config := watched(row.action)
			if row.config != "" {
				config = strings.Replace(config, servicetest.Quick, row.config, 1)
			}
			s := servicetest.New(t, config, servicetest.Machine("a", 1))
			s.Tenant(t, "idle", 90, "a", 0, 0, 16)
			measured(s, row.minutes, map[string]int64{first: row.milli})
			if row.request == "2" {
				a := servicetest.Ask("waiting", "16G", 1)
				a.Priority = 20
				a.Tasks = append(a.Tasks, a.Tasks[0])
				a.Tasks[1].Task = "u"
				s.State.Apply([]nomad.Change{{Node: servicetest.Machine("b", 2)}}, s.Index)
				s.Submit(t, a)
				s.Register(a)
				s.Block(a, 1)
				for index, id := range []string{"x", "y"} {
					s.Tenant(t, id, 90, "b", index, 0, 16)
				}
			} else if row.request != "" {
				s.Waits(t, "waiting", row.request, 20)
			}
			if row.then != nil {
				row.then(s)
			}
			s.Pass(5 * time.Second)
			due := s.Next(nil, true)
			if !row.goes {
				if due != nil {
					t.Fatalf("done is %+v", due)
				}
				return
			}
			if due == nil || due.Evict == nil || !due.Evict.Idle || len(due.Evict.Victims) != 1 || due.Evict.Victims[0].AllocID != "alloc-idle" || due.Revision.Prefer != "id-a" {
				t.Fatalf("done is %+v", due)
			}
			want := `default/idle (priority 90, alloc alloc-id) must leave node a: it has not used its GPUs since 2027-01-15 08:01 UTC (queue q: idle_after 10m0s, idle_action "evict"), and job default/waiting waits for 8G`
			if got := due.Evict.Victims[0].Text; got != want {
				t.Errorf("it says %q\nwant    %q", got, want)
			}
		})
	}
}

// Idle work goes before work that is used, of lower priority too.
func TestIdleWorkGoesFirst(t *testing.T) {
	s := servicetest.New(t, strings.Replace(watched("evict"), " protected = true\n", "", 1), servicetest.Machine("a", 2))
	s.Tenant(t, "idle", 90, "a", 0, 0, 16)
	s.Tenant(t, "low", 10, "a", 1, 0, 16)
	measured(s, 11, map[string]int64{servicetest.Instance("a", 0, 0): 0, servicetest.Instance("a", 1, 0): 300})
	s.Waits(t, "waiting", "8G", 50)
	if due := s.Next(nil, true); due == nil || due.Evict == nil || len(due.Evict.Victims) != 1 || due.Evict.Victims[0].AllocID != "alloc-idle" {
		t.Fatalf("done is %+v", due)
	}
}

// What had to go since it did not use its GPUs does not have others evicted to come back.
func TestIdleWorkDoesNotTakeItsRoomBack(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	s.Tenant(t, "low", 10, "a", 0, 0, 16)
	s.Waits(t, "idle", "8G", 90)
	s.State.Do(func(tx *state.Tx) {
		tx.Note(view.Event{Kind: "idle", Namespace: "default", JobID: "idle", AllocID: "alloc-idle", Text: "it had to go"})
	})
	if due := s.Next(nil, true); due != nil {
		t.Fatalf("done is %+v", due)
	}
	s.Pass(time.Hour)
	if due := s.Next(nil, true); due == nil || due.Evict == nil {
		t.Errorf("and an hour later %+v", due)
	}
}

// A gang is idle when all of it is.
func TestAGangIsIdleAsOne(t *testing.T) {
	s := servicetest.New(t, watched("evict"), servicetest.Machine("a", 2))
	gang := servicetest.Ask("gang", "16G", 2)
	gang.Priority, gang.Gang = 90, true
	s.Submit(t, gang)
	s.Register(gang)
	for n, id := range []string{"alloc-0", "alloc-1"} {
		s.Run(gang, id, "a", n, 0, 16)
	}
	one, other := servicetest.Instance("a", 0, 0), servicetest.Instance("a", 1, 0)
	measured(s, 11, map[string]int64{one: 0, other: 9})
	s.Waits(t, "waiting", "8G", 20)
	if due := s.Next(nil, true); due != nil {
		t.Fatalf("a rank computes, and done is %+v", due)
	}
	measured(s, 12, map[string]int64{one: 0, other: 0})
	if due := s.Next(nil, true); due == nil || due.Evict == nil || len(due.Evict.Victims) != 2 || !due.Evict.Victims[0].Gang || !due.Evict.Idle {
		t.Fatalf("none computes, and done is %+v", due)
	}
}

// The seat of an idle task makes room where its queue has that, for equals too, and the task
// goes on.
func TestIdleSeatsMakeRoom(t *testing.T) {
	for _, action := range []string{"report", "suspend", "evict"} {
		s := servicetest.New(t, watched(action), servicetest.SeatMachine("a", 1, 1, 90))
		s.Tenant(t, "busy", 90, "a", 0, 0, 16)
		sitter(t, s, "notebook", 60, 1, 0)
		measured(s, 11, map[string]int64{servicetest.Instance("a", 0, 0): 900, servicetest.Instance("a", 1, 0): 0})
		s.Waits(t, "waiting", "1", 60)
		due := s.Next(nil, true)
		if takes := due != nil && due.Seat != nil && due.Evict == nil; takes != (action != "report") {
			t.Errorf("%s: done is %+v", action, due)
		}
		last := servicetest.Ask("native", "1", 1)
		last.Priority, last.Sharing = 10, gpu.SharingSuspend
		d, err := s.Decide(t.Context(), []admit.Ask{last}, true)
		if err != nil {
			t.Fatal(err)
		}
		if says := strings.Contains(strings.Join(d[0].Explanation, "\n"), "steps aside"); says != (action != "report") {
			t.Errorf("%s: a job of low priority is told %q", action, d[0].Explanation)
		}
	}
}
