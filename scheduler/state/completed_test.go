// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// What has completed of a batch job is what does not run, and is neither missing nor started again; and the
// job may be registered again for what waits once that has waited for as long as its completed allocs ran.
func TestWhatHasCompletedOfAJob(t *testing.T) {
	minute := time.Minute
	for name, row := range map[string]struct {
		change    func(s *servicetest.Service, a admit.Ask)
		completed int
		repeats   time.Duration
		wait      time.Duration
		may       bool
	}{
		"nothing": {may: true},
		"one, and nothing waits": {change: func(s *servicetest.Service, _ admit.Ask) {
			s.Pass(minute)
			s.End("alloc-0")
		}, completed: 1, repeats: minute, wait: 100 * minute},
		"two of them": {change: func(s *servicetest.Service, _ admit.Ask) {
			s.Pass(minute)
			s.End("alloc-0")
			s.Pass(minute)
			s.End("alloc-1")
		}, completed: 2, repeats: 3 * minute},
		"one, at once": {change: func(s *servicetest.Service, _ admit.Ask) { s.End("alloc-0") }, completed: 1, repeats: time.Second},
		"one, and another waits": {change: func(s *servicetest.Service, a admit.Ask) {
			s.Pass(minute)
			s.End("alloc-0")
			s.End("alloc-1")
			s.Block(a, 1)
		}, completed: 1, repeats: minute, wait: minute - time.Second},
		"one, and another has waited long enough": {change: func(s *servicetest.Service, a admit.Ask) {
			s.Pass(minute)
			s.End("alloc-0")
			s.End("alloc-1")
			s.Block(a, 1)
		}, completed: 1, repeats: minute, wait: minute, may: true},
		"one, after another had waited": {change: func(s *servicetest.Service, a admit.Ask) {
			s.Stop("alloc-1")
			s.End("alloc-1")
			s.Block(a, 1)
			s.Pass(minute)
			s.End("alloc-0")
		}, completed: 1, repeats: minute, wait: minute - time.Second},
		"one was stopped": {change: func(s *servicetest.Service, _ admit.Ask) {
			s.Stop("alloc-0")
			s.End("alloc-0")
		}, may: true},
		"one, and another failed that is started again": {change: func(s *servicetest.Service, a admit.Ask) {
			change(s, a, func(j *nomad.Job) { j.Groups[0].Restarts = true })
			s.Pass(minute)
			s.End("alloc-0")
			f := s.Alloc("alloc-1")
			f.Status, f.Failed, f.Returns = "failed", true, true
			s.State.Apply([]nomad.Change{{Alloc: &f}}, s.Index)
		}, completed: 1, repeats: minute},
		"one, and another failed and waits for room": {change: func(s *servicetest.Service, a admit.Ask) {
			change(s, a, func(j *nomad.Job) { j.Groups[0].Restarts = true })
			s.Pass(minute)
			s.End("alloc-0")
			f := s.Alloc("alloc-1")
			f.Status, f.Failed = "failed", true
			s.State.Apply([]nomad.Change{{Alloc: &f}}, s.Index)
			s.Block(a, 1)
		}, completed: 1, repeats: minute},
		"one, and another runs where its group may not": {change: func(s *servicetest.Service, a admit.Ask) {
			s.Pass(minute)
			s.End("alloc-0")
			recorded(s, servicetest.KeyOf(a), func(r *record.Record) {
				g := r.Groups["g"]
				g.Excluded = map[string]string{"id-b": "default/other"}
				r.Groups["g"] = g
			})
			s.Block(a, 1)
		}, completed: 1, repeats: minute},
		"one, and the group is held": {change: func(s *servicetest.Service, a admit.Ask) {
			s.Pass(minute)
			s.End("alloc-0")
			recorded(s, servicetest.KeyOf(a), func(r *record.Record) {
				g := r.Groups["g"]
				g.Decision.Hold = &admit.Hold{Kind: "quota"}
				r.Groups["g"] = g
			})
			s.Block(a, 2)
		}, completed: 1, repeats: minute},
		"one, and another runs at an earlier version": {change: func(s *servicetest.Service, a admit.Ask) {
			later(s, a, "alloc-0", "alloc-1")
			s.Pass(minute)
			s.End("alloc-0")
			s.Block(a, 1)
		}, completed: 1, repeats: minute, wait: minute, may: true},
		"one, and Nomad has not come to the version that is registered": {change: func(s *servicetest.Service, a admit.Ask) {
			later(s, a, "alloc-0")
			s.Pass(minute)
			s.End("alloc-0")
		}, completed: 1, repeats: minute},
		"one of an earlier version": {change: func(s *servicetest.Service, a admit.Ask) {
			later(s, a, "alloc-1", "alloc-2")
			s.Pass(minute)
			s.End("alloc-0")
			s.Block(a, 1)
		}, may: true},
		"of a service": {change: func(s *servicetest.Service, a admit.Ask) {
			change(s, a, func(j *nomad.Job) { j.Type = "service" })
			s.End("alloc-0")
		}, may: true},
		"before it was heard of": {change: func(s *servicetest.Service, _ admit.Ask) {
			past := s.Alloc("alloc-0")
			s.State.Apply([]nomad.Change{{AllocGone: past.ID}}, s.Index)
			past.Status, past.Ended = "complete", past.Created.Add(minute)
			s.State.Apply([]nomad.Change{{Past: &past}}, s.Index)
		}, completed: 1, repeats: minute},
		"of a job that has ended": {change: func(s *servicetest.Service, a admit.Ask) {
			s.End("alloc-0")
			change(s, a, func(j *nomad.Job) { j.Stopped = true })
		}, may: true},
		"of one that is gone": {change: func(s *servicetest.Service, a admit.Ask) {
			s.End("alloc-0")
			key := servicetest.KeyOf(a)
			s.State.Apply([]nomad.Change{{JobGone: &key}}, s.Index)
		}, may: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
			a := servicetest.Ask("job", "4G", 3)
			a.JobType = "batch"
			s.Submit(t, a)
			s.Register(a)
			s.Run(a, "alloc-0", "a", 0, 0, 4)
			s.Run(a, "alloc-1", "a", 0, 4, 4)
			s.Run(a, "alloc-2", "b", 0, 0, 4)
			if row.change != nil {
				row.change(s, a)
			}
			s.Pass(row.wait)
			key := servicetest.KeyOf(a)
			s.State.View(func(r *state.Reader) {
				if again := r.Queue.Repeats(key); again.Allocs != row.completed || again.Time != row.repeats || again.May() != row.may {
					t.Errorf("%d, for %s, again: %t; want %d, %s, %t", again.Allocs, again.Time, again.May(), row.completed, row.repeats, row.may)
				}
			})
		})
	}
}

// later registers another version of a job, to which Nomad has brought up some of its allocs.
func later(s *servicetest.Service, a admit.Ask, ids ...string) {
	change(s, a, func(j *nomad.Job) { j.Version++ })
	for _, id := range ids {
		up := s.Alloc(id)
		s.Index++
		up.Index, up.Version = s.Index, up.Version+1
		s.State.Apply([]nomad.Change{{Alloc: &up}}, s.Index)
	}
}

// What has completed runs again once another version of its job is registered; else there is nothing that
// could.
func TestWhatRunsAgain(t *testing.T) {
	for completed, want := range map[bool]bool{false: false, true: true} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		a := servicetest.Ask("job", "4G", 2)
		a.JobType = "batch"
		s.Submit(t, a)
		s.Register(a)
		s.Run(a, "alloc-0", "a", 0, 0, 4)
		s.Run(a, "alloc-1", "a", 0, 4, 4)
		if completed {
			s.Pass(time.Minute)
			s.End("alloc-0")
		}
		again := func() bool {
			return read(s, func(r *state.Reader) bool { return r.Queue.RunsAgain(servicetest.KeyOf(a)) })
		}
		if again() {
			t.Error("nothing was registered, and yet it runs again")
		}
		if s.Register(a); again() != want {
			t.Errorf("completed %v: it runs again: %v", completed, !want)
		}
	}
}
