// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// A job of which something has completed is registered again where a part of it has to go, or is let go. All
// else is left as it is, until what waits has waited for as long as that ran.
func TestWhatIsRegisteredThoughAPartHasCompleted(t *testing.T) {
	hold := &admit.Hold{Kind: view.WaitsForRoom, Sentence: "there is none"}
	for name, row := range map[string]struct {
		first, revision decide.Revision // the first is made before anything has completed
		waits           time.Duration   // 0: nothing waits
		changed         bool
	}{
		"a node is left out":                   {revision: decide.Revision{Exclude: []string{"id-b"}, For: "default/other"}, changed: true},
		"it is held":                           {revision: decide.Revision{Hold: hold}, changed: true},
		"it is let go":                         {first: decide.Revision{Hold: hold}, revision: decide.Revision{Retry: true}, waits: time.Second, changed: true},
		"a node is taken back in":              {first: decide.Revision{Exclude: []string{"id-b"}, For: "default/other"}, revision: decide.Revision{Include: []string{"id-b"}}},
		"a node is taken back in, one waits":   {first: decide.Revision{Exclude: []string{"id-b"}, For: "default/other"}, revision: decide.Revision{Include: []string{"id-b"}}, waits: time.Minute},
		"a node is taken back in, one waited":  {first: decide.Revision{Exclude: []string{"id-b"}, For: "default/other"}, revision: decide.Revision{Include: []string{"id-b"}}, waits: time.Hour, changed: true},
		"another node is preferred":            {revision: decide.Revision{Prefer: "id-d"}, waits: time.Minute},
		"another node is preferred, at last":   {revision: decide.Revision{Prefer: "id-d"}, waits: time.Hour, changed: true},
		"it is to run without GPUs":            {revision: decide.Revision{OnCPU: true}, waits: time.Minute},
		"it is brought together with a record": {revision: decide.Revision{Align: true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1), servicetest.Machine("c", 1), servicetest.Machine("d", 1))
			a := servicetest.Ask("job", "8G", 3)
			a.JobType = "batch"
			s.Submit(t, a)
			s.Register(a)
			for _, n := range []string{"a", "b", "c"} {
				s.Run(a, "alloc-"+n, n, 0, 0, 8)
			}
			if row.first.Hold != nil || row.first.Exclude != nil {
				if revise(t, s, a, row.first) == nil {
					t.Fatal("nothing was changed before")
				}
			}
			s.Pass(time.Hour)
			s.End("alloc-a")
			switch {
			case row.first.Hold != nil:
				s.Block(a, 2)
			case row.waits > 0:
				s.End("alloc-b")
				s.Block(a, 1)
			}
			s.Pass(row.waits)
			before := recorded(s, a)
			if d := revise(t, s, a, row.revision); (d != nil) != row.changed {
				t.Errorf("registered with %+v", d)
			}
			after := recorded(s, a)
			if counts := !after.Attempts.Equal(before.Attempts); counts != (row.revision.Prefer != "") {
				t.Errorf("counted %+v", after.Attempts)
			}
			if !row.changed && (len(after.Excluded) != len(before.Excluded) || !after.FellBack.IsZero()) {
				t.Errorf("recorded as %+v", after)
			}
		})
	}
}

// evicted is who goes for a job that waits.
func evicted(s *servicetest.Service, a admit.Ask) (e *decide.Eviction) {
	g := recorded(s, a)
	s.State.Do(func(tx *state.Tx) {
		tx.Try(func() { e = decide.Evict(tx, servicetest.KeyOf(a), &g, decide.NewWindow(tx)) })
	})
	return e
}

// Of equal work that goes first by which an eviction has nothing done again, however long it has run for; but
// what has completed keeps nothing from being evicted, and who is evicted is told of it.
func TestWhatHasCompletedIsNoShield(t *testing.T) {
	for name, row := range map[string]struct {
		priority int // of the other
		want     string
	}{
		"beside another": {20, "other"},
		"alone":          {90, "shards"},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
			other := servicetest.Ask("other", "4G", 2)
			other.JobType, other.Priority = "batch", row.priority
			s.Submit(t, other)
			s.Register(other)
			s.Run(other, "other-0", "a", 0, 0, 4)
			s.Run(other, "other-1", "a", 0, 4, 4)
			s.Pass(10 * time.Minute)
			shards := servicetest.Ask("shards", "4G", 2)
			shards.JobType, shards.Priority = "batch", 20
			s.Submit(t, shards)
			s.Register(shards)
			s.Run(shards, "shards-0", "a", 0, 8, 4)
			s.Run(shards, "shards-1", "a", 0, 12, 4)
			s.Pass(time.Hour)
			s.End("shards-0")
			last := servicetest.Ask("last", "4G", 1)
			last.Priority = 90
			s.Submit(t, last)
			s.Register(last)
			s.Run(last, "last", "a", 0, 8, 4)
			waits := s.Waits(t, "waits", "4G", 60)
			e := evicted(s, waits)
			if e == nil || len(e.Victims) != 1 || e.Victims[0].Job.ID != row.want {
				t.Fatalf("%+v", e)
			}
			if again := strings.Contains(e.Victims[0].Text, "runs 1 of the job's allocs again"); again != (row.want == "shards") {
				t.Errorf("it says %q", e.Victims[0].Text)
			}
		})
	}
}

// Nomad asks no queue for what it runs again. So where that is too much for the queue, what has to go waits
// for its quota with it, and nothing is registered again for the sake of what waits.
func TestWhatRunsAgainIsPaidFor(t *testing.T) {
	for name, row := range map[string]struct {
		other    bool // which took the quota of what has completed
		revision decide.Revision
		held     bool
		changed  bool
	}{
		"a node is left out, and the queue can pay": {false, decide.Revision{Exclude: []string{"id-a"}, For: "default/other"}, false, true},
		"a node is left out":                        {true, decide.Revision{Exclude: []string{"id-a"}, For: "default/other"}, true, true},
		"one waits, and the queue can pay":          {false, decide.Revision{Prefer: "id-c"}, false, true},
		"one waits":                                 {true, decide.Revision{Prefer: "id-c"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "queue \"q\" {\n gpus = 1.5\n borrow = false\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 1), servicetest.Machine("b", 1), servicetest.Machine("c", 1))
			a := servicetest.Ask("job", "8G", 3)
			a.JobType = "batch"
			s.Submit(t, a)
			s.Register(a)
			for _, n := range []string{"a", "b", "c"} {
				s.Run(a, "alloc-"+n, n, 0, 0, 8)
			}
			s.Pass(time.Minute)
			s.End("alloc-c")
			if row.other {
				other := servicetest.Ask("other", "8G", 1)
				s.Submit(t, other)
				s.Register(other)
				s.Run(other, "other", "c", 0, 8, 8)
			}
			if row.revision.Prefer != "" {
				s.End("alloc-b")
				s.Block(a, 1)
				s.Pass(time.Hour)
			}
			d := revise(t, s, a, row.revision)
			if held := d != nil && d.Hold != nil && d.Hold.Kind == view.WaitsForQuota; held != row.held || (d != nil) != row.changed {
				t.Errorf("registered with %+v", d)
			}
		})
	}
}
