// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What the audit log, the metrics and explain call an answer is what comes of the job:
// nothing is called placed for which there is no room.
func TestAnOutcomeIsWhatComesOfTheJob(t *testing.T) {
	ask := func(request string, count int, change func(*admit.Ask)) admit.Ask {
		a := servicetest.Ask("job", request, count)
		if change != nil {
			change(&a)
		}
		return a
	}
	rows := []struct {
		name, queues string
		ask          admit.Ask
		want         string
	}{
		{"room for all", "", ask("8G", 2, nil), view.Placed},
		{"room for one of three", "", ask("1", 3, nil), view.Waits},
		{"a gang", "", ask("1", 3, func(a *admit.Ask) { a.Gang = true }), view.Held},
		{"over its quota", servicetest.OneGPU, ask("0.5", 2, nil), view.Held},
		{"periodic", "", ask("1", 1, func(a *admit.Ask) { a.Later = true }), view.Registered},
		{"system", "", ask("1G", 1, func(a *admit.Ask) { a.JobType = "system" }), view.Registered},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			b := servicetest.New(t, row.queues, servicetest.Machine("a", 2))
			b.Tenant(t, "neighbor", 50, "a", 0, 0, 16)
			if row.name == "room for all" {
				b.End("alloc-neighbor")
			}
			d := b.Submit(t, row.ask)
			shown := b.Record(servicetest.KeyOf(row.ask)).Groups["g"].Shown
			if row.want == view.Registered && !strings.HasSuffix(shown.Summary, map[string]string{"periodic": "when it is made", "system": "on every node that it may run on"}[row.name]) {
				t.Errorf("explain says %q", shown.Summary)
			}
			if got := d.Outcome; got != row.want || shown.Outcome != row.want {
				t.Errorf("the answer is %q, explain says %q (%s), want %q", got, shown.Outcome, shown.Summary, row.want)
			}
		})
	}
	t.Run("what runs and grows beyond the room", func(t *testing.T) {
		b := servicetest.New(t, "", servicetest.Machine("a", 2))
		a := ask("1", 2, nil)
		b.Submit(t, a)
		b.Register(a)
		b.Run(a, "one", "a", 0, 0, 16)
		b.Run(a, "two", "a", 1, 0, 16)
		if d := b.Submit(t, a); d.Outcome != view.Placed {
			t.Errorf("submitted again as it runs: %q", d.Outcome)
		}
		if d := b.Submit(t, ask("9G", 2, nil)); d.Outcome != view.Placed {
			t.Errorf("changed, all that runs of it makes room: %q", d.Outcome)
		}
		a.Count = 3
		if d := b.Submit(t, a); d.Outcome != view.Waits {
			t.Errorf("one of three waits: %q", d.Outcome)
		}
	})
}

// What is said of a group that waits is what is so now: it does not grow each time that it is submitted.
func TestWhatIsSaidOfWhatWaitsDoesNotGrow(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	s.Tenant(t, "tenant", 50, "a", 0, 0, 16)
	a := servicetest.Ask("waits", "8G", 1)
	first := s.Submit(t, a)
	s.Register(a)
	s.Block(a, 1)
	for range 3 {
		s.Pass(time.Minute)
		if again := s.Submit(t, a); !slices.Equal(again.Explanation, first.Explanation) {
			t.Fatalf("it says %q, and at first %q", again.Explanation, first.Explanation)
		}
	}
	s.End("alloc-tenant")
	d, err := s.Revise(t.Context(), []admit.Ask{servicetest.Reread(a, first)}, decide.Revision{Group: "g", Retry: true})
	if err != nil || d == nil || len(d[0].Explanation) != 1 || !strings.HasPrefix(d[0].Explanation[0], "goes to a ") {
		t.Errorf("got %+v, %v", d, err)
	}
}
