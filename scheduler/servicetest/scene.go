// SPDX-License-Identifier: MPL-2.0

package servicetest

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Quick is a configuration in which work may be evicted at once.
const Quick = "preemption {\n min_run_time = \"0s\"\n}\n"

// OneGPU is a configuration with a queue that may hold one GPU.
const OneGPU = "queue \"q\" {\n gpus = 1\n borrow = false\n namespaces = [\"default\"]\n}\n"

// UseStore makes the replica keep its decisions in another store.
func (s *Service) UseStore(store record.Store) {
	s.Decider = leader.New(s.State, store, func() bool { return true })
}

// After is the next replica, a moment later: it shares what the first one stored,
// and was told nothing yet.
func After(t testing.TB, first *Service, d time.Duration, text string, machines ...*nomad.Node) *Service {
	t.Helper()
	s := New(t, text, machines...)
	s.Store, s.Clock.At = first.Store, first.Clock.At.Add(d)
	s.UseStore(s.Store)
	s.State.Heard()
	return s
}

// Stop shows that Nomad wants an alloc to end; it runs on until it has.
func (s *Service) Stop(id string) {
	a := s.Alloc(id)
	s.Index++
	a.Index, a.Stopping = s.Index, true
	s.State.Apply([]nomad.Change{{Alloc: &a}}, s.Index)
}

// Tenant shows a job that runs on slices of a GPU.
func (s *Service) Tenant(t testing.TB, id string, priority int, machine string, index, from, slices int) admit.Ask {
	t.Helper()
	a := Ask(id, "1G", 1)
	a.Priority = priority
	s.Submit(t, a)
	s.Register(a)
	s.Run(a, "alloc-"+id, machine, index, from, slices)
	return a
}

// Settled is as long as a group must have waited before anything is evicted for it.
const Settled = 3 * time.Second

// Waits shows a job that Nomad cannot place.
func (s *Service) Waits(t testing.TB, id, request string, priority int) admit.Ask {
	t.Helper()
	a := Ask(id, request, 1)
	a.Priority = priority
	s.Submit(t, a)
	s.Register(a)
	s.Block(a, 1)
	s.Pass(Settled)
	return a
}

// RegisterAs shows a job with what an admission left in it, whatever the service
// recorded: a revert, an edit, or a forgery. It returns the ask as it is read.
func (s *Service) RegisterAs(a admit.Ask, was *admit.Earlier) admit.Ask {
	s.Show(a, false)
	a.Was = was
	j := s.Job(KeyOf(a))
	s.Index++
	j.Index = s.Index
	j.Groups[0].Was, j.Groups[0].Registered = was, a.Registered()
	if was != nil && len(was.Tasks) > 0 {
		useBlocks(&j.Groups[0].Tasks[0], was.Tasks[0].Devices)
	}
	s.State.Apply([]nomad.Change{{Job: &j}}, s.Index)
	return a
}

// LetTimePass goes on until Nomad has told of everything.
func (s *Service) LetTimePass() { s.Pass(state.Echo + time.Second) }
