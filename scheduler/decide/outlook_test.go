// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// batch is a batch job with one alloc.
func batch(name, request string, limit time.Duration) admit.Ask {
	a := servicetest.Ask(name, request, 1)
	a.JobType, a.TimeLimit = "batch", limit
	return a
}

// runs starts a batch job on a GPU of a machine.
func runs(t *testing.T, s *servicetest.Service, a admit.Ask, machine string, index, slices int) {
	t.Helper()
	s.Submit(t, a)
	s.Register(a)
	s.Run(a, "alloc-"+a.JobID, machine, index, 0, slices)
}

// learned is a service that has seen whole GPUs be used for an hour, give or take a few
// minutes.
func learned(t *testing.T, gpus int) *servicetest.Service {
	t.Helper()
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", gpus))
	for i := range 12 {
		a := batch(fmt.Sprint("past-", i), "1", 0)
		runs(t, s, a, "a", 0, 16)
		s.Pass(time.Hour + time.Duration(i)*time.Minute)
		s.End("alloc-" + a.JobID)
		s.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(a)) })
	}
	return s
}

// starts are what is estimated now.
func starts(s *servicetest.Service) (all map[string]state.Start) {
	s.State.Do(func(tx *state.Tx) { all = decide.Foresee(tx).Starts() })
	return all
}

func TestStartsAreEstimatedFromLearnedLifetimes(t *testing.T) {
	s := learned(t, 1)
	runs(t, s, batch("running", "1", 0), "a", 0, 16)
	s.Pass(40 * time.Minute)
	for _, name := range []string{"first", "second"} {
		a := batch(name, "1", 0)
		s.Submit(t, a)
		s.Register(a)
		s.Block(a, 1)
		s.Pass(time.Second)
	}
	all := starts(s)
	first, second := all["default/first/g"], all["default/second/g"]
	if !first.Known || first.Soonest < 18*time.Minute || first.Latest > 32*time.Minute || first.Soonest > first.Likely || first.Likely > first.Latest {
		t.Errorf("the first starts %+v; of what runs for 60 to 71 minutes it is the 40th", first)
	}
	if !second.Known || second.Soonest < 78*time.Minute || second.Latest > 104*time.Minute {
		t.Errorf("the second starts %+v, an hour after the first", second)
	}
	if first.Turn != 1 || second.Turn != 2 || second.Of != 2 {
		t.Errorf("their places are %d and %d of %d", first.Turn, second.Turn, second.Of)
	}
	s.State.Do(func(tx *state.Tx) { tx.NoteStarts(all) })
	p := s.Cluster(t).Pending
	if text := p[0].Start.Text(s.Clock.At); !strings.HasPrefix(text, "number 1 of 2 that wait; likely to start in 2") || !strings.Contains(text, " min, between ") {
		t.Errorf("people read %q", text)
	}
}

func TestTimeLimitsSayWhenWorkEnds(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	runs(t, s, batch("running", "1", 30*time.Minute), "a", 0, 16)
	a := batch("waits", "1", 0)
	s.Submit(t, a)
	s.Register(a)
	s.Block(a, 1)
	if got := starts(s)["default/waits/g"]; !got.Known || got.Latest > 30*time.Minute {
		t.Errorf("it starts %+v; what runs ends within 30 minutes", got)
	}
}

func TestServicesAreNotKnownToEnd(t *testing.T) {
	s := learned(t, 1)
	s.Tenant(t, "tenant", 50, "a", 0, 0, 16)
	s.Waits(t, "waits", "1", 50)
	got := starts(s)["default/waits/g"]
	if got.Known || got.Turn != 1 || got.Shown().Text(s.Clock.At) != "number 1 of 1 that wait; when it starts is not known" {
		t.Errorf("it starts %+v behind a service", got)
	}
}

// A plan says when the job would start, and where it would stand, and changes nothing.
func TestAPlanSaysWhenAJobWouldStart(t *testing.T) {
	s := learned(t, 1)
	runs(t, s, batch("running", "1", 0), "a", 0, 16)
	ahead := batch("ahead", "1", 0)
	s.Submit(t, ahead)
	s.Register(ahead)
	s.Block(ahead, 1)
	s.Pass(time.Second)
	d, err := s.Decide(t.Context(), []admit.Ask{batch("planned", "1", 0)}, true)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(d[0].Explanation, "\n")
	if !strings.Contains(text, "number 2 of 2 that wait; likely to start in 2.") {
		t.Errorf("the plan says %q", text)
	}
	if d, err = s.Decide(t.Context(), []admit.Ask{batch("small", "1", 0)}, false); err != nil || strings.Contains(strings.Join(d[0].Explanation, ""), "likely") {
		t.Errorf("a submission says %q, %v", d[0].Explanation, err)
	}
}

// Who comes later may use room that is kept for a larger group only where it will have
// ended before that could start.
func TestABackfilledJobDelaysNobody(t *testing.T) {
	for name, c := range map[string]struct {
		small admit.Ask
		held  bool
	}{
		"nothing is known of it":          {batch("small", "8G", 0), true},
		"its limit is short":              {batch("small", "8G", 20*time.Minute), false},
		"its limit is long":               {batch("small", "8G", 40*time.Minute), true},
		"a service says it ends":          {func() admit.Ask { a := batch("small", "8G", 20*time.Minute); a.JobType = "service"; return a }(), true},
		"others like it run for too long": {batch("small", "1", 0), true},
	} {
		t.Run(name, func(t *testing.T) {
			s := learned(t, 2)
			runs(t, s, batch("running", "1", 0), "a", 0, 16)
			large := batch("large", "2", 0)
			s.Submit(t, large)
			s.Register(large)
			s.Block(large, 1)
			s.Pass(30 * time.Minute) // large starts in 30 to 41 minutes
			d := s.Submit(t, c.small)
			if held := d.Hold != nil && d.Hold.Kind == view.WaitsForPriority; held != c.held {
				t.Errorf("held: %t (%+v), want %t", held, d.Hold, c.held)
			}
		})
	}
}

// TestTheFirst64ThatWaitAreEstimated: those behind them are told where they stand.
func TestTheFirst64ThatWaitAreEstimated(t *testing.T) {
	s := learned(t, 1)
	runs(t, s, batch("running", "1", 0), "a", 0, 16)
	for i := range 66 {
		a := batch(fmt.Sprintf("waits-%02d", i), "1", time.Hour)
		s.Submit(t, a)
		s.Register(a)
		s.Block(a, 1)
		s.Pass(time.Second)
	}
	all := starts(s)
	for i := range 66 {
		if start := all[fmt.Sprintf("default/waits-%02d/g", i)]; start.Known != (i < 64) || start.Turn != i+1 || start.Of != 66 {
			t.Errorf("number %d: %+v", i+1, start)
		}
	}
}
