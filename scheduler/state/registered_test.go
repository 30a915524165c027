// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// A record is under way until Nomad has taken it and its news may have come.
func TestWhatCameAroundTheService(t *testing.T) {
	for name, row := range map[string]struct {
		change                     func(*servicetest.Service, *nomad.Job)
		direct, drifted, unrecored bool
	}{
		"as recorded":            {func(*servicetest.Service, *nomad.Job) {}, false, false, false},
		"fewer than recorded":    {func(_ *servicetest.Service, j *nomad.Job) { j.Groups[0].Count = 0 }, false, true, false},
		"more than recorded":     {func(_ *servicetest.Service, j *nomad.Job) { j.Groups[0].Count = 2 }, true, true, true},
		"otherwise":              {func(_ *servicetest.Service, j *nomad.Job) { j.Groups[0].Registered = "else" }, true, true, true},
		"otherwise, no mark":     {func(_ *servicetest.Service, j *nomad.Job) { j.Groups[0].Registered, j.Groups[0].Was = "else", nil }, true, false, true},
		"otherwise, stopped":     {func(_ *servicetest.Service, j *nomad.Job) { j.Groups[0].Registered, j.Stopped = "else", true }, true, false, true},
		"another group":          {func(_ *servicetest.Service, j *nomad.Job) { j.Groups[0].Name = "h" }, true, true, true},
		"another without GPUs":   {func(_ *servicetest.Service, j *nomad.Job) { j.Groups[0].Name, j.Groups[0].Tasks = "h", nil }, false, false, false},
		"a child as its parent":  {func(_ *servicetest.Service, j *nomad.Job) { child(j, "one", true) }, false, true, true},
		"a child unlike it":      {func(_ *servicetest.Service, j *nomad.Job) { child(j, "one", false) }, true, true, true},
		"a child of another":     {func(_ *servicetest.Service, j *nomad.Job) { child(j, "nobody", true) }, true, true, true},
		"kept as it came around": {func(s *servicetest.Service, _ *nomad.Job) { direct(s) }, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1))
			s.Register(servicetest.Ask("one", "1G", 1))
			recorded(s, one, nil)
			s.Register(servicetest.Ask("one", "1G", 1))
			j := s.Job(one)
			j.Index++
			j.Groups = append([]nomad.Group(nil), j.Groups...)
			row.change(s, &j)
			s.State.Apply([]nomad.Change{{Job: &j}}, 99)
			if j.Key == one && read(s, func(r *state.Reader) bool { return r.Queue.Direct(one) }) {
				t.Error("it is direct while the decision is under way")
			}
			s.Pass(state.Unseen)
			s.State.View(func(r *state.Reader) {
				if r.Queue.Direct(j.Key) != row.direct || r.Queue.Drifted(j.Key) != row.drifted {
					t.Errorf("direct %v, drifted %v", r.Queue.Direct(j.Key), r.Queue.Drifted(j.Key))
				}
				if j.Key == one && r.Queue.Unrecorded(one) != row.unrecored {
					t.Errorf("unrecorded: %v", r.Queue.Unrecorded(one))
				}
				if drifted := r.Queue.Recorded(state.Drifted); (len(drifted) == 1) != row.drifted {
					t.Errorf("drifted: %v", drifted)
				}
				if r.Queue.Direct(nomad.JobKey{ID: "none"}) {
					t.Error("a job that is not there is direct")
				}
			})
		})
	}
}

// child makes a job that of a parent, as it was recorded of it or not.
func child(j *nomad.Job, parent string, same bool) {
	j.Key, j.Parent = nomad.JobKey{Namespace: "default", ID: "child"}, parent
	j.Groups[0].Inherited = "else"
	if same {
		j.Groups[0].Inherited = j.Groups[0].Registered
	}
}

func direct(s *servicetest.Service) {
	recorded(s, one, func(r *record.Record) {
		g := r.Groups["g"]
		g.Direct = true
		r.Groups["g"] = g
	})
}

// A job may have allocs while Nomad has it, or was about to a moment ago.
func TestAlive(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	r := recorded(s, one, nil)
	alive := func() bool { return read(s, func(x *state.Reader) bool { return x.Cluster.Alive(one, r) }) }
	if !alive() {
		t.Error("decided a moment ago")
	}
	s.Pass(state.Unseen)
	if alive() {
		t.Error("Nomad never had it")
	}
	a := servicetest.Ask("one", "1G", 1)
	s.Register(a)
	s.Run(a, "alloc", "a", 0, 0, 1)
	j := s.Job(one)
	j.Stopped = true
	if !alive() {
		t.Error("Nomad has it")
	}
	s.State.Apply([]nomad.Change{{Job: &j}}, 99)
	if !alive() {
		t.Error("it is stopped, and an alloc runs")
	}
	s.Stop("alloc")
	if alive() {
		t.Error("all of it ends")
	}
}

// The next leader keeps what was decided and promised a moment ago.
func TestRecall(t *testing.T) {
	for name, row := range map[string]struct {
		known, stopped bool
		running        int
		age            time.Duration
		kept           bool
		promised       int
	}{
		"a moment ago":               {true, false, 0, time.Minute, true, 2},
		"a moment ago, one runs":     {true, false, 1, time.Minute, true, 1},
		"a moment ago, all run":      {true, false, 2, time.Minute, true, 0},
		"before":                     {true, false, 0, time.Minute + 1, true, 0},
		"a stopped job":              {true, true, 0, 0, true, 0},
		"a job that is not there":    {false, false, 0, time.Hour, true, 0},
		"one that never was or left": {false, false, 0, time.Hour + 1, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1))
			a := servicetest.Ask("one", "1G", 2)
			if row.known {
				s.Register(a)
				j := s.Job(one)
				j.Stopped = row.stopped
				s.State.Apply([]nomad.Change{{Job: &j}}, 99)
			}
			for i := range row.running {
				s.Run(a, string(rune('x'+i)), "a", 0, 8+i, 1)
			}
			r := record.New(one)
			r.At = s.Clock.At.Add(-row.age)
			r.Groups["g"] = record.Group{Ask: a, Assumed: []place.Usage{on("a", 1), on("a", 1)}, Shown: view.Decision{JobID: "one", At: r.At}}
			s.State.Do(func(tx *state.Tx) {
				for range 2 { // it may lead twice
					if tx.Recall(r) != row.kept {
						t.Errorf("kept: %v", !row.kept)
					}
				}
			})
			if len(s.AllAssumed()) != row.promised || (s.Record(one) != nil) != row.kept {
				t.Errorf("%d promised, record %v", len(s.AllAssumed()), s.Record(one))
			}
			if n := len(s.Cluster(t).Decisions); (n == 1) != row.kept {
				t.Errorf("%d decisions", n)
			}
		})
	}
}

// Of what was promised and runs in part, the rest is promised where it does not run yet.
func TestRecallOfWhatRunsInPart(t *testing.T) {
	for name, row := range map[string]struct {
		runs     []string // the machines on which allocs run
		count    int
		promised []string
		booked   map[string]int64
	}{
		"the first and one of two alike": {runs: []string{"b", "a"}, count: 3, promised: []string{"b", "a", "a"}, booked: map[string]int64{"a": 2, "b": 1}},
		"the last":                       {runs: []string{"b"}, count: 2, promised: []string{"a", "b"}, booked: map[string]int64{"a": 1, "b": 1}},
		"one where none was promised":    {runs: []string{"c"}, count: 2, promised: []string{"a", "b"}, booked: map[string]int64{"a": 1, "b": 0, "c": 1}},
		"all run":                        {runs: []string{"a", "b"}, count: 2, promised: []string{"a", "b"}, booked: map[string]int64{"a": 1, "b": 1}},
		"a growth, where the first runs": {runs: []string{"a"}, count: 3, promised: []string{"a", "a"}, booked: map[string]int64{"a": 3}},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1), servicetest.Machine("c", 1))
			a := servicetest.Ask("one", "1G", row.count)
			s.Register(a)
			for i, machine := range row.runs {
				s.Run(a, string(rune('x'+i)), machine, 0, 8+i, 1)
			}
			r := record.New(one)
			r.At = s.Clock.At
			g := record.Group{Ask: a}
			for _, machine := range row.promised {
				g.Assumed = append(g.Assumed, on(machine, 1))
			}
			r.Groups["g"] = g
			s.State.Do(func(tx *state.Tx) { tx.Recall(r) })
			for machine, want := range row.booked {
				wantSlices(t, s, machine, want, name)
			}
		})
	}
}

// What is held until all of its room is there has what is being made for it: for two minutes, and
// for as long as something there is still to end. What it was promised before it was held is over.
func TestRecallOfRoomThatIsMade(t *testing.T) {
	for name, row := range map[string]struct {
		age            time.Duration // of the eviction
		stops, runs    bool
		none           bool // nothing was made for it
		promised, last int  // at once, and two minutes later
	}{
		"a moment ago":                  {age: time.Second, promised: 2},
		"two minutes ago":               {age: state.Unplaced, promised: 0},
		"ago, and something stops":      {age: 20 * time.Minute, stops: true, promised: 2, last: 2},
		"long ago, and something stops": {age: time.Hour, stops: true},
		"some of it runs":               {age: time.Second, runs: true},
		"nothing was made":              {age: time.Second, none: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
			a, other := servicetest.Ask("one", "1G", 2), servicetest.Ask("other", "1G", 1)
			s.Register(a)
			s.Register(other)
			s.Run(other, "alloc-other", "b", 0, 8, 1)
			if row.stops {
				s.Stop("alloc-other")
			}
			if row.runs {
				s.Run(a, "alloc-one", "a", 0, 8, 1)
			}
			r := record.New(one)
			r.At = s.Clock.At
			g := record.Group{Ask: a, Assumed: []place.Usage{on("a", 1), on("b", 1)}, Attempts: record.Attempts{Times: 1, At: s.Clock.At.Add(-row.age)}}
			g.Decision.Hold = &admit.Hold{Kind: view.WaitsForRoom, Sentence: "so"}
			if row.none {
				g.Assumed = nil
			}
			r.Groups["g"] = g
			s.State.Do(func(tx *state.Tx) {
				for range 2 { // it may lead twice
					tx.Recall(r)
				}
			})
			for _, want := range []int{row.promised, row.last} {
				s.Expire()
				for _, promised := range s.AllAssumed() {
					if !promised.Kept {
						t.Errorf("%+v is not kept", promised)
					}
				}
				if n := len(s.AllAssumed()); n != want {
					t.Errorf("%d promised, want %d", n, want)
				}
				s.Pass(state.Unplaced + 1)
			}
		})
	}
}

// The record of a job that left goes, unless it came back or is about to.
func TestTakeGone(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	taken := func() (list []nomad.JobKey) {
		s.State.Do(func(tx *state.Tx) { list = tx.TakeGone() })
		return list
	}
	a := servicetest.Ask("one", "1G", 1)
	s.Register(a)
	recorded(s, one, nil)
	s.State.Apply([]nomad.Change{{JobGone: &one}}, 99)
	if got := taken(); len(got) != 0 || s.Record(one) == nil {
		t.Errorf("a decision of this moment goes: %v", got)
	}
	s.Pass(state.Unseen)
	if got := taken(); len(got) != 1 || got[0] != one || s.Record(one) != nil {
		t.Errorf("got %v", got)
	}
	if got := taken(); len(got) != 0 {
		t.Errorf("taken twice: %v", got)
	}
	recorded(s, one, nil)
	s.Register(a)
	s.State.Apply([]nomad.Change{{JobGone: &one}}, 99)
	s.Register(a)
	s.Pass(state.Unseen)
	if got := taken(); len(got) != 0 || s.Record(one) == nil {
		t.Errorf("it has come back: %v", got)
	}
}

// TestANewLeaderSeesWhatWasRegistered: what was recorded a moment ago may be on its way to
// Nomad, but not where Nomad has taken the job since: then a change around the service is
// known at once, and not only when the time is over that a job may take.
func TestANewLeaderSeesWhatWasRegistered(t *testing.T) {
	for name, row := range map[string]struct {
		decided uint64 // at which index
		direct  bool
	}{"registered since": {8, true}, "not registered since": {200, false}, "by a release that did not say": {0, false}} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1))
			a := servicetest.Ask("one", "1G", 2)
			s.Register(a) // not as it is recorded
			r := record.New(one)
			r.At, r.Index = s.Clock.At, row.decided
			r.Groups["g"] = record.Group{Ask: servicetest.Ask("one", "1G", 1)}
			s.State.Do(func(tx *state.Tx) { tx.Recall(r) })
			s.Pass(state.Echo)
			if got := read(s, func(r *state.Reader) bool { return r.Queue.Direct(one) }); got != row.direct {
				t.Errorf("direct: %v", got)
			}
			s.Pass(state.Unseen) // an old record is not under way because it was recalled
			s.State.Do(func(tx *state.Tx) { tx.Recall(r) })
			if !read(s, func(r *state.Reader) bool { return r.Queue.Direct(one) }) {
				t.Error("recalled long after, and not direct")
			}
		})
	}
}

// A job that Nomad tells of again is still admitted, however late; one that was stopped and
// runs again without a decision came around the service.
func TestAJobThatIsStartedAgainIsDirect(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("one", "1G", 1)
	s.Submit(t, a)
	s.Register(a)
	told := func(stopped bool) bool {
		s.Pass(state.Unseen)
		j := s.Job(one)
		s.Index++
		j.Index, j.Stopped = s.Index, stopped
		s.State.Apply([]nomad.Change{{Job: &j}}, s.Index)
		return read(s, func(r *state.Reader) bool { return r.Queue.Direct(one) })
	}
	for range 2 {
		if told(false) {
			t.Error("it came around the service, since Nomad told of it again")
		}
	}
	told(true)
	if !told(false) {
		t.Error("it was stopped, and is admitted when it is started again")
	}
}
