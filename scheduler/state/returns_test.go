// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// What failed and is started again later is owed by its queue: as many as are missing, until
// another is there or it is known that none comes.
func TestWhatIsStartedAgainIsOwed(t *testing.T) {
	half := place.Charge{Milli: 500, MemoryMiB: 8192}
	for name, row := range map[string]struct {
		announced bool // Nomad has said that it starts another
		change    func(s *servicetest.Service, a admit.Ask, failed *nomad.Alloc)
		owed      int64 // halves of a GPU
	}{
		"Nomad has not said anything yet": {owed: 1},
		"Nomad has said it":               {announced: true, owed: 1},
		"Nomad says nothing": {change: func(s *servicetest.Service, _ admit.Ask, _ *nomad.Alloc) {
			s.LetTimePass()
			s.Expire()
		}},
		"Nomad has said it, long ago": {announced: true, owed: 1, change: func(s *servicetest.Service, _ admit.Ask, _ *nomad.Alloc) {
			s.Pass(minutes(50))
			s.Expire()
		}},
		"another is there": {announced: true, change: func(s *servicetest.Service, a admit.Ask, _ *nomad.Alloc) {
			s.Run(a, "next", "a", 1, 0, 8)
		}},
		"another is said to be there": {announced: true, change: func(s *servicetest.Service, _ admit.Ask, failed *nomad.Alloc) {
			failed.Failed, failed.Returns = false, false
			s.State.Apply([]nomad.Change{{Alloc: failed}}, s.Index)
		}},
		"it is forgotten": {announced: true, change: func(s *servicetest.Service, _ admit.Ask, failed *nomad.Alloc) {
			s.State.Apply([]nomad.Change{{AllocGone: failed.ID}}, s.Index)
		}},
		"a canary is not the other": {announced: true, owed: 1, change: func(s *servicetest.Service, a admit.Ask, _ *nomad.Alloc) {
			s.Run(a, "canary", "a", 1, 0, 8)
			c := s.Alloc("canary")
			c.Canary = true
			s.State.Apply([]nomad.Change{{Alloc: &c}}, s.Index)
		}},
		"the other ends": {announced: true, owed: 1, change: func(s *servicetest.Service, a admit.Ask, _ *nomad.Alloc) {
			s.Run(a, "next", "a", 1, 0, 8)
			s.Stop("next")
		}},
		"it waits for room, which is owed already": {announced: true, owed: 1, change: func(s *servicetest.Service, a admit.Ask, _ *nomad.Alloc) { s.Block(a, 1) }},
		"another of them waits for room, which is promised": {announced: true, owed: 1, change: func(s *servicetest.Service, a admit.Ask, _ *nomad.Alloc) {
			s.End("runs")
			s.Block(a, 1)
			s.State.Do(func(tx *state.Tx) { tx.Assume(servicetest.KeyOf(a), "g", on("a", 8), true) })
		}},
		"fewer are wanted": {announced: true, change: func(s *servicetest.Service, a admit.Ask, _ *nomad.Alloc) {
			change(s, a, func(j *nomad.Job) { j.Groups[0].Count = 1 })
		}},
		"it is registered with another policy": {announced: true, change: func(s *servicetest.Service, a admit.Ask, _ *nomad.Alloc) {
			change(s, a, func(j *nomad.Job) { j.Groups[0].Restarts = false })
		}},
		"its job is stopped": {announced: true, change: func(s *servicetest.Service, a admit.Ask, _ *nomad.Alloc) {
			change(s, a, func(j *nomad.Job) { j.Stopped = true })
		}},
		"its group is gone": {announced: true, change: func(s *servicetest.Service, a admit.Ask, _ *nomad.Alloc) {
			change(s, a, func(j *nomad.Job) { j.Groups[0].Name = "other" })
		}},
		"its job is purged": {announced: true, change: func(s *servicetest.Service, a admit.Ask, _ *nomad.Alloc) {
			key := servicetest.KeyOf(a)
			s.State.Apply([]nomad.Change{{JobGone: &key}}, s.Index)
			s.Register(a)
			change(s, a, func(j *nomad.Job) { j.Groups[0].Restarts = true })
			s.Run(a, "runs again", "a", 0, 0, 8)
		}},
		"its group waits": {announced: true, change: func(s *servicetest.Service, a admit.Ask, _ *nomad.Alloc) {
			s.State.Do(func(tx *state.Tx) {
				r := record.New(servicetest.KeyOf(a))
				r.Groups["g"] = record.Group{Ask: a, Decision: admit.Decision{Group: "g", Hold: &admit.Hold{Kind: "quota"}}}
				tx.Keep(r)
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			a := servicetest.Ask("job", "8G", 2)
			s.Submit(t, a)
			s.Register(a)
			change(s, a, func(j *nomad.Job) { j.Groups[0].Restarts = true })
			s.Run(a, "runs", "a", 0, 0, 8)
			s.Run(a, "fails", "a", 0, 8, 8)
			s.LetTimePass()
			s.Expire()
			failed := s.Alloc("fails")
			failed.Status, failed.Failed, failed.Returns = "failed", true, row.announced
			s.State.Apply([]nomad.Change{{Alloc: &failed}}, s.Index)
			if row.change != nil {
				row.change(s, a, &failed)
			}
			if got := read(s, func(r *state.Reader) place.Charge { return r.Queue.Owed("q", other) }); got != half.Times(row.owed) {
				t.Errorf("%v is owed, want %v", got, half.Times(row.owed))
			}
			if own := read(s, func(r *state.Reader) place.Charge { return r.Queue.Owed("q", servicetest.KeyOf(a)) }); own != (place.Charge{}) {
				t.Errorf("the job owes itself %v", own)
			}
		})
	}
}

// What is not started again is owed nothing.
func TestWhatIsNotStartedAgainIsNotOwed(t *testing.T) {
	for name, change := range map[string]func(j *nomad.Job, failed *nomad.Alloc){
		"its policy has it not": func(j *nomad.Job, _ *nomad.Alloc) { j.Groups[0].Restarts = false },
		"it did not fail":       func(_ *nomad.Job, failed *nomad.Alloc) { failed.Failed, failed.Returns = false, false },
		"it has no GPU":         func(_ *nomad.Job, failed *nomad.Alloc) { failed.Devices = nil },
		"of another group":      func(_ *nomad.Job, failed *nomad.Alloc) { failed.Group = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			a := servicetest.Ask("job", "8G", 1)
			s.Register(a)
			s.Run(a, "fails", "a", 0, 8, 8)
			j, failed := s.Job(servicetest.KeyOf(a)), s.Alloc("fails")
			j.Groups[0].Restarts = true
			failed.Status, failed.Failed, failed.Returns = "failed", true, true
			change(&j, &failed)
			s.Index++
			j.Index = s.Index
			s.State.Apply([]nomad.Change{{Job: &j}}, s.Index)
			s.State.Apply([]nomad.Change{{Alloc: &failed}}, s.Index)
			if got := read(s, func(r *state.Reader) place.Charge { return r.Queue.Owed("q", other) }); got != (place.Charge{}) {
				t.Errorf("%v is owed", got)
			}
		})
	}
}

// change shows a job as changed around the service.
func change(s *servicetest.Service, a admit.Ask, by func(*nomad.Job)) {
	j := s.Job(servicetest.KeyOf(a))
	by(&j)
	s.Index++
	j.Index = s.Index
	s.State.Apply([]nomad.Change{{Job: &j}}, s.Index)
}
