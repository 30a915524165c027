// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/outlook"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// split is a service of two machines of two GPUs, with half a GPU of each in use by batch jobs
// x and y for some hours.
func split(t *testing.T) *servicetest.Service {
	t.Helper()
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2), servicetest.Machine("b", 2))
	for id, machine := range map[string]string{"x": "a", "y": "b"} {
		a := batch(id, "0.5", 0)
		s.Submit(t, a)
		s.Register(a)
		s.Run(a, "alloc-"+id, machine, 0, 0, 8)
	}
	s.Pass(5 * time.Hour)
	return s
}

// moving is what the core may propose in these tests: moves of y, as it is asked for.
func moving(tx *state.Tx) place.Rebalancing {
	return place.Rebalancing{
		Moves: 2, Horizon: 24 * time.Hour, CanMove: func(u *place.Usage) bool { return u.ID == "alloc-y" },
		Request: func(u *place.Usage) (place.Request, bool) { return decide.AskedBy(tx, u) },
	}
}

// relieve looks for moves for the group that waits.
func relieve(s *servicetest.Service, a admit.Ask) (e *decide.Eviction, err error) {
	s.State.Do(func(tx *state.Tx) {
		g := tx.Queue.Record(servicetest.KeyOf(a)).Groups[a.Group]
		tx.Try(func() { e, err = decide.Relieve(tx, servicetest.KeyOf(a), &g, moving(tx)) })
	})
	return e, err
}

// Work moves so that a group starts: its new place is promised to it, and its old one to the
// group, with the priorities that both have.
func TestMovesForWhatWaits(t *testing.T) {
	for name, row := range map[string]struct {
		change  func(s *servicetest.Service, a *admit.Ask) // before it is submitted
		then    func(s *servicetest.Service, a admit.Ask)  // once it waits
		says    string                                     // why nothing moves
		none    bool
		gang    bool
		rewrite bool
	}{
		"one that waits as a whole": {rewrite: true},
		"a gang":                    {change: func(_ *servicetest.Service, a *admit.Ask) { a.Gang = true }, gang: true},
		"one that keeps its blocks": {change: func(s *servicetest.Service, a *admit.Ask) {
			for _, machine := range []string{"a", "b"} {
				s.Tenant(t, "stays-"+machine, 90, machine, 1, 0, 16)
			}
			*a = blocks("waits", "nvidia/slice", 16)
		}},
		"one that must not be changed": {then: func(s *servicetest.Service, a admit.Ask) {
			registered(s, a, func(j *nomad.Job) { j.Dispatched = true })
		}, says: ""},
		"one of several tasks":        {change: func(_ *servicetest.Service, a *admit.Ask) { *a = servicetest.Ask("waits", "1", 1); second(a, "1") }, says: "no work is moved for groups like it"},
		"a group that knows no queue": {then: func(s *servicetest.Service, a admit.Ask) { forgetQueue(s, a) }, says: "no work is moved for groups like it"},
		"where nothing may be moved there": {then: func(s *servicetest.Service, a admit.Ask) {
			excluded := servicetest.Machine("a", 2)
			excluded.Plan.Ineligible = true
			joins(s, excluded)
		}, says: "no room"},
	} {
		t.Run(name, func(t *testing.T) {
			s := split(t)
			a := servicetest.Ask("waits", "2", 1)
			a.Priority = 70
			if row.change != nil {
				row.change(s, &a)
			}
			a.Priority = 70
			s.Submit(t, a)
			s.Register(a)
			s.Block(a, 1)
			s.Pass(servicetest.Settled)
			if row.then != nil {
				row.then(s, a)
			}
			e, err := relieve(s, a)
			if row.says != "" {
				if e != nil || err == nil || !strings.Contains(err.Error(), row.says) {
					t.Errorf("got %+v, %v", e, err)
				}
				return
			}
			if err != nil || e == nil || !e.Moves || len(e.Victims) != 1 || (e.Room == nil) != row.gang || e.Room != nil && e.Room.Node() != "id-b" {
				t.Fatalf("got %+v, %v", e, err)
			}
			v := e.Victims[0]
			if v.AllocID != "alloc-y" || v.Job.ID != "y" || v.Group != "g" || v.Node != "id-b" || v.To != "id-a" || v.Priority != 50 {
				t.Errorf("moves %+v", v)
			}
			if want := fmt.Sprintf("alloc alloc-y of job default/y moves from node b to a, so that job default/waits finds room for %s; 2h30m2s of GPU time since it started is lost", &a); v.Text != want {
				t.Errorf("it says %q\nwant    %q", v.Text, want)
			}
			if e.Text != fmt.Sprintf("1 allocs move so that job default/waits finds room for %s", &a) {
				t.Errorf("it says %q", e.Text)
			}
			if len(e.Promises) != 2 || e.Promises[0].Job.ID != "waits" || e.Promises[0].Usage.NodeID != "id-b" || e.Promises[0].Usage.Priority != 70 ||
				e.Promises[1].Job.ID != "y" || e.Promises[1].Group != "g" || e.Promises[1].Usage.NodeID != "id-a" || e.Promises[1].Usage.Priority != 50 {
				t.Errorf("promised is %+v", e.Promises)
			}
			if got := e.KeptOff(&v); !slices.Equal(got, []string{"id-b"}) {
				t.Errorf("it is kept off %v", got)
			}
			if row.gang {
				return
			}
			d := revise(t, s, a, decide.Revision{Prefer: e.Room.Node(), Room: e.Room})
			if d == nil && row.rewrite || d != nil && (d.Preferred[0] != "id-b" || len(recorded(s, a).Decision.Tasks) != len(a.Tasks)) {
				t.Errorf("it is registered with %+v", d)
			}
		})
	}
}

// forgetQueue has what is recorded of a job name a queue that is not there any more.
func forgetQueue(s *servicetest.Service, a admit.Ask) {
	s.State.Do(func(tx *state.Tx) {
		r := tx.Queue.Record(servicetest.KeyOf(a)).Clone()
		g := r.Groups[a.Group]
		g.Ask.Queue = "gone"
		r.Groups[a.Group] = g
		tx.Keep(r)
	})
}

// Moves that would lose more than they win are not made, and it is said why; what starts soon
// by itself is worth less.
func TestMovesHaveToPay(t *testing.T) {
	s := split(t)
	a := s.Waits(t, "waits", "2", 50)
	if e, err := relieve(s, a); e == nil || err != nil {
		t.Fatalf("in a day it wins 48 hours: %+v, %v", e, err)
	}
	s.State.Do(func(tx *state.Tx) {
		tx.NoteStarts(map[string]state.Start{"default/waits/g": {Outlook: outlook.Outlook{Known: true, Likely: 10 * time.Minute}, At: tx.Now()}})
	})
	if e, err := relieve(s, a); e != nil || err == nil || errors.Is(err, place.ErrNoRoom) {
		t.Errorf("it starts in ten minutes anyway: %+v, %v", e, err)
	}
	s.State.Do(func(tx *state.Tx) {
		tx.NoteStarts(map[string]state.Start{"default/waits/g": {Outlook: outlook.Outlook{Likely: 10 * time.Minute}, At: tx.Now()}})
	})
	if e, err := relieve(s, a); e == nil || err != nil {
		t.Errorf("it is not known when it starts: %+v, %v", e, err)
	}
}

// What moves is told what it loses: what it computed since it started, or since its work was
// saved.
func TestWhatAMoveLosesIsSaid(t *testing.T) {
	s := split(t)
	s.State.Do(func(tx *state.Tx) {
		u, _ := tx.Capacity.Usage("alloc-x")
		m := place.Move{From: u, To: place.Placement{NodeID: "id-b"}}
		for _, row := range []struct {
			lost  int64
			saved time.Duration
			want  string
		}{
			{0, 0, "no work is lost"},
			{1500, 0, "25m0s of GPU time since it started is lost"},
			{1500, time.Minute, "25m0s of GPU time since its work was saved is lost"},
		} {
			m.LostMilliSeconds, m.From.WorkSaved = row.lost*1000, row.saved
			if got, want := decide.MoveText(tx, &m, "because"), "alloc alloc-x of job default/x moves from node a to b, because; "+row.want; got != want {
				t.Errorf("it says %q\nwant    %q", got, want)
			}
		}
	})
}

// What runs is moved as what its author asked for, on the kind of GPU that it has; where that is
// not one request that is known, it stays.
func TestWhatWorkAskedFor(t *testing.T) {
	for name, row := range map[string]struct {
		ask  admit.Ask
		then func(s *servicetest.Service, u *place.Usage)
		not  bool
	}{
		"a request":                      {ask: servicetest.Ask("job", "8G", 1)},
		"a device block":                 {ask: blocks("job", "nvidia/slice", 8)},
		"an alloc that is gone":          {ask: servicetest.Ask("job", "8G", 1), then: func(_ *servicetest.Service, u *place.Usage) { u.ID = "gone" }, not: true},
		"without a GPU":                  {ask: servicetest.Ask("job", "8G", 1), then: func(_ *servicetest.Service, u *place.Usage) { u.Takes = nil }, not: true},
		"of a job without a record":      {ask: servicetest.Ask("job", "8G", 1), then: func(s *servicetest.Service, _ *place.Usage) { forgetRecord(s, "job") }, not: true},
		"of a queue that is gone":        {ask: servicetest.Ask("job", "8G", 1), then: func(s *servicetest.Service, _ *place.Usage) { forgetQueue(s, servicetest.Ask("job", "8G", 1)) }, not: true},
		"several device blocks":          {ask: func() admit.Ask { a := servicetest.Ask("job", "8G", 1); second(&a, "1G"); return a }(), not: true},
		"a block with an alternative":    {ask: alternative(), not: true},
		"allocs that keep to themselves": {ask: func() admit.Ask { a := servicetest.Ask("job", "8G", 1); a.Distinct = admit.DistinctInGroup; return a }()},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
			s.Submit(t, row.ask)
			s.Register(row.ask)
			s.Run(row.ask, "alloc-job", "a", 0, 0, 8)
			var u place.Usage
			s.State.Do(func(tx *state.Tx) { u, _ = tx.Capacity.Usage("alloc-job") })
			u.MinRun = 7
			if row.then != nil {
				row.then(s, &u)
			}
			s.State.Do(func(tx *state.Tx) {
				r, ok := decide.AskedBy(tx, &u)
				if ok == row.not {
					t.Fatalf("got %+v, %t", r, ok)
				}
				if !ok {
					return
				}
				if r.ID != "alloc-job" || !slices.Equal(r.Models, []string{"Tesla T4"}) || r.MinRun != 7 || (row.ask.Distinct != "") != slices.Equal(r.Nodes, []string{"id-b"}) {
					t.Errorf("it asked for %+v", r)
				}
			})
		})
	}
}

func forgetRecord(s *servicetest.Service, id string) {
	s.State.Do(func(tx *state.Tx) { tx.ForgetRecord(nomad.JobKey{Namespace: "default", ID: id}) })
}

// alternative is a job whose block leaves Nomad the choice.
func alternative() admit.Ask {
	a := blocks("job", "nvidia/slice", 8)
	a.Tasks[0].Devices[0].Alternative = true
	a.Tasks[0].Devices[0].Or = []admit.DeviceAsk{{Name: "nvidia/gpu", Count: 1, Alternative: true}}
	return a
}

// Work goes only where its device blocks can be served as they are registered.
func TestWorkMovesOnlyWhereItCanStart(t *testing.T) {
	s := split(t)
	joins(s, wholeMachine("d"))
	full := servicetest.Ask("full", "1", 1)
	s.Register(full)
	joins(s, servicetest.Machine("e", 1))
	s.Run(full, "alloc-full", "e", 0, 0, 16)
	s.State.Do(func(tx *state.Tx) {
		u, _ := tx.Capacity.Usage("alloc-x")
		for node, may := range map[string]bool{"id-b": true, "id-d": false, "id-e": false} {
			if decide.MayGo(tx, &place.Move{From: u, To: place.Placement{NodeID: node}}) != may {
				t.Errorf("to %s: %t", node, !may)
			}
		}
		u.ID = "gone"
		if decide.MayGo(tx, &place.Move{From: u, To: place.Placement{NodeID: "id-b"}}) {
			t.Error("what is gone may go")
		}
		u.ID = "alloc-full"
		if decide.MayGo(tx, &place.Move{From: u, To: place.Placement{NodeID: "id-b"}}) {
			t.Error("what is not known may go")
		}
	})
}
