// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// registered changes how a job is registered.
func registered(s *servicetest.Service, a admit.Ask, change func(j *nomad.Job)) {
	j := s.Job(servicetest.KeyOf(a))
	j.Groups = append([]nomad.Group(nil), j.Groups...)
	change(&j)
	s.Index++
	j.Index = s.Index
	s.State.Apply([]nomad.Change{{Job: &j}}, s.Index)
}

// A group falls back when it has waited as long as it is registered with; never in part, never
// twice, and a gang as a whole.
func TestWhatFallsBack(t *testing.T) {
	after := func(d time.Duration) func(j *nomad.Job) {
		return func(j *nomad.Job) { j.Groups[0].FallbackAfter = gpu.TimeLimit(d) }
	}
	// two is a job with another group, g, beside the one that waits.
	two := func(gang bool, other func(s *servicetest.Service, a admit.Ask)) func(s *servicetest.Service, a admit.Ask) {
		return func(s *servicetest.Service, a admit.Ask) {
			beside := a
			beside.Group = "h"
			a.Gang, beside.Gang = gang, true
			asks := []admit.Ask{a, beside}
			d, err := s.Decide(t.Context(), asks, false)
			if err != nil {
				t.Fatal(err)
			}
			s.Settle(t.Context(), asks, d, true)
			registered(s, a, func(j *nomad.Job) {
				j.Groups = append(j.Groups, j.Groups[0])
				j.Groups[0].Gang, j.Groups[1].Gang = gang, true
				j.Groups[1].Name, j.Groups[1].Count = "h", 1
			})
			s.State.Do(func(tx *state.Tx) {
				tx.Forget(servicetest.KeyOf(a), "g")
				tx.Forget(servicetest.KeyOf(a), "h")
			})
			if other != nil {
				other(s, beside)
			}
		}
	}
	runsToo := func(s *servicetest.Service, a admit.Ask) { s.Run(a, "alloc-h", "a", 0, 0, 1) }
	for name, row := range map[string]struct {
		wait    time.Duration
		prepare func(s *servicetest.Service, a admit.Ask)
		falls   bool
	}{
		"not before its time":          {wait: time.Minute - 1},
		"then":                         {wait: time.Minute, falls: true},
		"it may wait longer by now":    {wait: time.Minute, prepare: func(s *servicetest.Service, a admit.Ask) { registered(s, a, after(2*time.Minute)) }},
		"it does not say so any more":  {wait: time.Minute, prepare: func(s *servicetest.Service, a admit.Ask) { registered(s, a, after(0)) }},
		"a part of it runs":            {wait: time.Minute, prepare: func(s *servicetest.Service, a admit.Ask) { s.Run(a, "alloc", "a", 0, 0, 1) }},
		"a part of it is about to run": {wait: time.Minute, prepare: assumed},
		"it fell back before":          {wait: time.Minute, prepare: func(s *servicetest.Service, a admit.Ask) { fellBack(s, a) }},
		"its record is lost": {wait: time.Minute, prepare: func(s *servicetest.Service, a admit.Ask) {
			s.State.Do(func(tx *state.Tx) { tx.ForgetRecord(servicetest.KeyOf(a)) })
		}, falls: true},
		"it cannot be changed": {wait: time.Minute, prepare: func(s *servicetest.Service, a admit.Ask) {
			registered(s, a, func(j *nomad.Job) { j.Dispatched = true })
		}},
		"a gang falls back as a whole": {wait: time.Minute, prepare: two(true, nil), falls: true},
		"a gang of which a part runs":  {wait: time.Minute, prepare: two(true, runsToo)},
		"another group may run":        {wait: time.Minute, prepare: two(false, runsToo), falls: true},
		"a gang of which one is to wait": {wait: time.Minute, prepare: two(true, func(s *servicetest.Service, a admit.Ask) {
			registered(s, a, func(j *nomad.Job) { j.Groups[1].FallbackAfter = 0 })
		})},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "preemption {\n enabled = false\n}\n", servicetest.Machine("a", 1))
			s.Tenant(t, "tenant", 50, "a", 0, 0, 14)
			a := servicetest.Ask("waits", "8G", 1)
			a.FallbackAfter = gpu.TimeLimit(time.Minute)
			s.Submit(t, a)
			s.Register(a)
			registered(s, a, after(time.Minute))
			s.Block(a, 1)
			if row.prepare != nil {
				row.prepare(s, a)
			}
			s.Pass(row.wait)
			s.State.Do(func(tx *state.Tx) {
				for _, w := range slices.Collect(tx.Queue.Waiting()) {
					if w.Group == "g" && decide.FallsBack(tx, w) != row.falls {
						t.Errorf("it falls back: %t", !row.falls)
					}
				}
				if len(slices.Collect(tx.Queue.Waiting())) == 0 {
					t.Error("nothing waits")
				}
			})
		})
	}
}

// assumed shows a promise to a job.
func assumed(s *servicetest.Service, a admit.Ask) {
	s.State.Do(func(tx *state.Tx) {
		u := tx.Capacity.UsagesOn("id-a")[0]
		u.ID = "promised"
		tx.Assume(servicetest.KeyOf(a), a.Group, u, true)
	})
}

// fellBack records that a group runs without GPUs.
func fellBack(s *servicetest.Service, a admit.Ask) {
	s.State.Do(func(tx *state.Tx) {
		r := tx.Queue.Record(servicetest.KeyOf(a)).Clone()
		g := r.Groups[a.Group]
		g.FellBack = tx.Now()
		r.Groups[a.Group] = g
		tx.Keep(r)
	})
}

// What runs without a GPU holds none, costs nothing, keeps to the nodes of its queue and says
// why; what is submitted again is tried anew.
func TestWhatRunsWithoutAGPU(t *testing.T) {
	s := servicetest.New(t, "queue \"q\" {\n gpus = 1\n borrow = false\n datacenters = [\"dc1\"]\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 2))
	s.Tenant(t, "tenant", 50, "a", 0, 0, 16)
	a := servicetest.Ask("waits", "8G", 1)
	if d := s.Submit(t, a); d.Hold == nil {
		t.Fatalf("it does not wait: %+v", d)
	}
	s.Register(a)
	s.Block(a, 1)
	if _, err := s.Revise(t.Context(), []admit.Ask{a}, decide.Revision{Group: "g", OnCPU: true}); err == nil || !strings.Contains(err.Error(), `group "g" of job "default/waits" is registered without gpu_fallback by now`) {
		t.Errorf("it does not fall back by itself: %v", err)
	}
	a.FallbackAfter = gpu.TimeLimit(time.Minute)
	s.Submit(t, a)
	s.Pass(90 * time.Second)
	d := revise(t, s, a, decide.Revision{OnCPU: true})
	want := "it waited 1m30s for 8G and runs without a GPU, until it is submitted again"
	if d == nil || !d.OnCPU || d.Hold != nil || len(d.Tasks) != 1 || d.Tasks[0].Task != "t" || len(d.Tasks[0].Devices) != 0 || len(d.Bounds) != 1 || d.Explanation[0] != want {
		t.Fatalf("it is registered with %+v", d)
	}
	g := recorded(s, a)
	if !g.FellBack.Equal(s.Clock.At) || g.Cost.Milli != 0 || g.Ask.Was != nil || g.Key != a.Key() || len(s.AllAssumed()) != 0 {
		t.Errorf("recorded is %+v", g)
	}
	if shown := g.Shown; shown.Outcome != view.OnCPU || !shown.At.Equal(s.Clock.At) || shown.Summary != want || shown.Choices != nil || len(shown.Reasons) != 0 {
		t.Errorf("people see %+v", shown)
	}
	c := s.Cluster(t)
	if c.Decisions[0].Outcome != view.OnCPU || c.Events[0].Kind != "fallback" || c.Events[0].JobID != "waits" || c.Events[0].Namespace != "default" || c.Events[0].Text != "group g of job default/waits: "+want {
		t.Errorf("told are %+v and %+v", c.Decisions[0], c.Events[0])
	}
	s.End("alloc-tenant")
	if d := s.Submit(t, a); d.OnCPU || d.Hold != nil || len(d.Tasks[0].Devices) != 1 || !recorded(s, a).FellBack.IsZero() {
		t.Errorf("submitted again it gets %+v", d)
	}
}

// A fallback that was recorded and never registered is not believed: the group waits on with
// the blocks that it is registered with.
func TestAFallbackThatIsNotRegistered(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	s.Tenant(t, "tenant", 50, "a", 0, 0, 16)
	a := servicetest.Ask("waits", "8G", 1)
	a.FallbackAfter = gpu.TimeLimit(time.Minute)
	was := s.Submit(t, a)
	s.Register(a)
	s.Block(a, 1)
	asks := []admit.Ask{servicetest.Reread(a, was)}
	if d, err := s.Revise(t.Context(), asks, decide.Revision{Group: "g", OnCPU: true}); err != nil || !d[0].OnCPU {
		t.Fatalf("got %+v, %v", d, err)
	}
	d, err := s.Revise(t.Context(), asks, decide.Revision{Group: "g", Retry: true})
	if err != nil || d == nil || d[0].OnCPU || len(d[0].Tasks[0].Devices) != 1 || d[0].Tasks[0].Devices[0].Count != 8 {
		t.Errorf("got %+v, %v", d, err)
	}
	if g := recorded(s, a); !g.Attempts.Equal(record.Attempts{}) || !g.FellBack.IsZero() {
		t.Errorf("recorded is %+v", g)
	}
}

// A group whose record is lost is recorded anew, and waits on where it may; one that could never be
// paid for falls back instead, and leaves nothing promised.
func TestALostRecordIsMadeAnewBeforeAFallback(t *testing.T) {
	for name, row := range map[string]struct {
		asks  []string
		gang  bool
		onCPU bool
		error bool
	}{
		"its queue could pay for it":         {asks: []string{"8G"}},
		"its queue never could":              {asks: []string{"2"}, onCPU: true},
		"of a gang one is too large":         {asks: []string{"8G", "2"}, gang: true, onCPU: true},
		"of a gang one may not wait so long": {asks: []string{"8G", "2"}, gang: true, error: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			var asks []admit.Ask
			for i, request := range row.asks {
				a := servicetest.Ask("waits", request, 1)
				blocks := []admit.TaskDecision{{Task: "t", Devices: []admit.Device{{Name: "nvidia/slice", Count: 8}}}}
				a.Group, a.Gang, a.Was = string(rune('g'+i)), row.gang, &admit.Earlier{Hold: "quota: as it was", Tasks: blocks}
				if i == 0 || !row.error {
					a.FallbackAfter = gpu.TimeLimit(time.Minute)
				}
				asks = append(asks, a)
			}
			s.Show(asks[0], false)
			d, err := s.Revise(t.Context(), asks, decide.Revision{Group: "g", Align: true, OnCPU: true})
			if (err != nil) != row.error {
				t.Fatalf("got %+v, %v", d, err)
			}
			for _, one := range d {
				if one.OnCPU != row.onCPU || one.Hold != nil {
					t.Errorf("got %+v", one)
				}
			}
			if n := len(s.AllAssumed()); (n > 0) != (!row.onCPU && !row.error) {
				t.Errorf("%d are promised", n)
			}
		})
	}
}
