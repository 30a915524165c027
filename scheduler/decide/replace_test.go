// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// What replaces running work is charged in its place, and beside it where canaries come
// first.
func TestAReplacementIsChargedBesideWhatRunsWithCanaries(t *testing.T) {
	for name, c := range map[string]struct {
		kind     string
		canaries int
		beside   bool // another job holds half of the queue's GPU
		request  string
		placed   int
		says     string
	}{
		"in its place":                       {kind: "service", request: "10G", placed: 1},
		"a canary that fits":                 {kind: "service", canaries: 1, request: "7G", placed: 1},
		"a batch job has no canaries":        {kind: "batch", canaries: 1, request: "10G", placed: 1},
		"a canary that never fits":           {kind: "service", canaries: 1, request: "9G", says: "its canaries run beside what runs of it: queue q may hold at most 1 GPUs"},
		"two canaries that never fit":        {kind: "service", canaries: 2, request: "5G", says: "its canaries run beside what runs of it"},
		"a canary that has to wait":          {kind: "service", canaries: 1, beside: true, request: "4G", says: "waits for quota: queue q holds 1 of at most 1 GPUs"},
		"in its place, beside others":        {kind: "service", beside: true, request: "7G", placed: 1},
		"in its place, which has to wait":    {kind: "service", beside: true, request: "9G", says: "waits for quota: queue q holds 0.5 of at most 1 GPUs"},
		"more canaries than allocs, at once": {kind: "service", canaries: 2, request: "4G", placed: 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			a := servicetest.Ask("svc", "8G", 1)
			a.JobType, a.Canaries = c.kind, c.canaries
			s.Submit(t, a)
			s.Register(a)
			s.Run(a, "alloc-svc", "a", 0, 0, 8)
			if c.beside {
				s.Tenant(t, "beside", 50, "a", 1, 0, 8)
			}
			next := servicetest.Ask("svc", c.request, 1)
			next.JobType, next.Canaries = c.kind, c.canaries
			d, err := s.Decide(t.Context(), []admit.Ask{next}, false)
			if err != nil {
				var refusal *admit.Refusal
				if c.says == "" || !errors.As(err, &refusal) || refusal.Status != 403 || !strings.Contains(err.Error(), c.says) {
					t.Errorf("refused: %v, want %q", err, c.says)
				}
				return
			}
			said := strings.Join(d[0].Explanation, "\n")
			if placed := len(s.AllAssumed()); placed != c.placed || !strings.Contains(said, c.says) {
				t.Errorf("%d placed, %q; want %d and %q", placed, said, c.placed, c.says)
			}
		})
	}
}

// Regression: a group that was scaled to zero and back was taken for one that Nomad was
// about to place, and nothing looked whether its queue could still pay for it.
func TestWhatIsScaledToZeroAndBackIsChargedAnew(t *testing.T) {
	s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
	a := servicetest.Ask("svc", "8G", 2)
	s.Submit(t, a)
	s.Register(a)
	s.Run(a, "alloc-1", "a", 0, 0, 8)
	s.Run(a, "alloc-2", "a", 0, 8, 8)
	none := a
	none.Count = 0
	s.Register(none)
	s.End("alloc-1")
	s.End("alloc-2")
	s.LetTimePass()
	s.Tenant(t, "other", 50, "a", 0, 0, 8)
	d, err := s.Decide(t.Context(), []admit.Ask{a}, true)
	if err != nil || d[0].Hold == nil || d[0].Hold.Kind != "quota" {
		t.Errorf("half of the queue is taken, and yet %+v, %v", d, err)
	}
}

// What is missing of a group starts when its canaries are promoted, or at once where Nomad finds
// nothing to replace: where it is more than the canaries, the queue pays for it.
func TestWhatIsMissingIsChargedBesideCanaries(t *testing.T) {
	for name, row := range map[string]struct {
		lost    int
		beside  int // slices of another job
		count   int
		held    bool
		assumed int
	}{
		"nothing is missing":                {beside: 7, count: 3, assumed: 1},
		"one is lost, in whose place":       {lost: 1, beside: 9, count: 3, assumed: 1},
		"two are lost":                      {lost: 2, beside: 8, count: 3, assumed: 2},
		"two are lost, and others are paid": {lost: 2, beside: 9, count: 3, held: true},
		"one of two is not wanted again":    {lost: 2, beside: 9, count: 2, assumed: 1},
		"it grows":                          {beside: 4, count: 5, assumed: 2},
		"it grows by too much":              {beside: 5, count: 5, held: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			a := servicetest.Ask("svc", "2G", 3)
			s.Submit(t, a)
			s.Register(a)
			for i, id := range []string{"alloc-1", "alloc-2", "alloc-3"} {
				s.Run(a, id, "a", 0, 2*i, 2)
				if i < row.lost {
					s.End(id)
				}
			}
			s.Tenant(t, "beside", 50, "a", 1, 0, row.beside)
			s.LetTimePass()
			next := servicetest.Ask("svc", "3G", row.count)
			next.Canaries = 1
			d := s.Submit(t, next)
			if held := d.Hold != nil; held != row.held || len(s.AllAssumed()) != row.assumed {
				t.Errorf("held by %+v, assumed is %+v", d.Hold, s.AllAssumed())
			}
		})
	}
}

// An update with canaries is refused for good where its queue can never pay for them beside what
// runs of the version before: canaries of an earlier update, what stops and other groups do not count.
func TestOnlyWhatRunsOnCountsBesideCanaries(t *testing.T) {
	for name, row := range map[string]struct {
		group            string
		canary, stopping bool
		refused          bool
	}{
		"another one of that version": {group: "g", refused: true},
		"an earlier canary":           {group: "g", canary: true},
		"one that stops":              {group: "g", stopping: true},
		"one of another group":        {group: "h"},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			a := servicetest.Ask("svc", "2G", 2)
			s.Submit(t, a)
			s.Register(a)
			s.Run(a, "alloc", "a", 0, 0, 2)
			other := a
			other.Group = row.group
			s.Run(other, "other", "a", 1, 0, 8)
			alloc := s.Alloc("other")
			s.Index++
			alloc.Index, alloc.Canary, alloc.Stopping = s.Index, row.canary, row.stopping
			s.State.Apply([]nomad.Change{{Alloc: &alloc}}, s.Index)
			s.LetTimePass()
			next := servicetest.Ask("svc", "9G", 2)
			next.Canaries = 1
			_, err := s.Decide(t.Context(), []admit.Ask{next}, true)
			var refusal *admit.Refusal
			if refused := errors.As(err, &refusal) && refusal.Status == 403; refused != row.refused || err != nil && !refused {
				t.Errorf("got %v", err)
			}
		})
	}
}
