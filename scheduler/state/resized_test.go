// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// A task that runs gives compute back, and its node says so: it is booked with what it has.
// When it is started again it has what its job says.
func TestATaskThatGivesComputeBack(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	s.Tenant(t, "one", 50, "a", 0, 0, 8)
	task := s.Alloc("alloc-one").Devices[0].Task
	milli := func() int64 {
		return read(s, func(r *state.Reader) (n int64) {
			for _, u := range r.Capacity.UsagesOn("id-a") {
				n += u.Takes[0].Milli
			}
			return n
		})
	}
	tell := func(change func(*nomad.Alloc)) {
		a := s.Alloc("alloc-one")
		s.Index++
		a.Index, a.Compute, a.Started = s.Index, nil, nil
		change(&a)
		s.State.Apply([]nomad.Change{{Alloc: &a}}, s.Index)
	}
	for _, step := range []struct {
		when   string
		change func(*nomad.Alloc)
		want   int64
	}{
		{"at its start", func(a *nomad.Alloc) { a.Started = map[string]bool{task: true} }, 500},
		{"after it gave back", func(a *nomad.Alloc) {
			a.Started, a.Compute = map[string]bool{task: true}, map[string]int64{task: 100}
		}, 100},
		{"when Nomad has forgotten the event", func(*nomad.Alloc) {}, 100},
		{"after another task's", func(a *nomad.Alloc) { a.Compute = map[string]int64{"another": 5} }, 100},
		{"after its next start", func(a *nomad.Alloc) { a.Started = map[string]bool{task: true} }, 500},
	} {
		tell(step.change)
		if got := milli(); got != step.want {
			t.Errorf("%s it holds %d milli, want %d", step.when, got, step.want)
		}
	}
}
