// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// A job is registered anew only for what changes it, and what was changed once is not changed
// again: each registration costs an evaluation, and may replace what runs.
func TestARevisionIsMadeOnce(t *testing.T) {
	hold := &admit.Hold{Kind: view.WaitsForPriority, Sentence: "a job goes first"}
	for name, row := range map[string]struct {
		revision decide.Revision
		want     func(d *admit.Decision, g *record.Group) bool // nil: nothing changes
	}{
		"nothing":                       {decide.Revision{}, nil},
		"what is not left out, back in": {decide.Revision{Include: []string{"id-b"}}, nil},
		"a node is left out": {decide.Revision{Exclude: []string{"id-a"}, For: "default/other"}, func(d *admit.Decision, g *record.Group) bool {
			return d.WithoutCanaries && len(g.Assumed) == 0 && maps.Equal(g.Excluded, map[string]string{"id-a": "default/other"}) && slices.Equal(d.Candidates, []string{"id-b", "id-c"}) && len(d.Preferred) == 0
		}},
		"all nodes are left out": {decide.Revision{Exclude: []string{"id-a", "id-b", "id-c"}, For: "x"}, func(d *admit.Decision, _ *record.Group) bool {
			return slices.Equal(d.Candidates, []string{"none"})
		}},
		"another node is preferred": {decide.Revision{Prefer: "id-b"}, func(d *admit.Decision, g *record.Group) bool {
			return slices.Equal(d.Preferred, []string{"id-b", "id-a"}) && g.Attempts.Times == 1
		}},
		"it is held": {decide.Revision{Hold: hold}, func(d *admit.Decision, g *record.Group) bool {
			return *d.Hold == *hold && d.WithoutCanaries && g.Shown.Outcome == view.Held && g.Shown.Summary == "waits for priority: a job goes first"
		}},
		"it is held to nodes": {decide.Revision{Only: []string{"id-c"}}, func(d *admit.Decision, g *record.Group) bool {
			return slices.Equal(d.Candidates, []string{"id-c"}) && slices.Equal(g.Only, []string{"id-c"}) && !d.WithoutCanaries
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1), servicetest.Machine("c", 1))
			a := servicetest.Ask("job", "8G", 1)
			was := s.Submit(t, a)
			if !slices.Equal(was.Preferred, []string{"id-a"}) {
				t.Fatalf("it goes to %v", was.Preferred)
			}
			s.Register(a)
			s.Run(a, "alloc", "a", 0, 0, 8)
			before := version(s)
			s.Pass(time.Second)
			d := revise(t, s, a, row.revision)
			if row.want == nil {
				if d != nil || version(s) != before {
					t.Fatalf("it is registered with %+v", d)
				}
				return
			}
			if g := recorded(s, a); d == nil || !row.want(d, &g) {
				t.Fatalf("it is registered with %+v, and recorded as %+v", d, g)
			}
			if version(s) == before {
				t.Error("the view is not new")
			}
			if shown := s.Cluster(t).Decisions[0]; row.revision.Hold != nil && shown.Outcome != view.Held {
				t.Errorf("people are shown %+v", shown)
			}
			if row.revision.Prefer == "" { // which counts another attempt
				if d := revise(t, s, a, row.revision); d != nil {
					t.Errorf("and again: %+v", d)
				}
			}
			back := decide.Revision{Include: row.revision.Exclude, Everywhere: row.revision.Only != nil, Retry: row.revision.Hold != nil}
			d = revise(t, s, a, back)
			if g := recorded(s, a); row.revision.Prefer == "" && (d == nil || d.Hold != nil || d.Candidates != nil || len(g.Excluded)+len(g.Only) > 0) {
				t.Errorf("taken back it is %+v, %+v", d, g)
			}
			if row.revision.Exclude != nil && (d.WithoutCanaries || d.Candidates != nil) {
				t.Errorf("nothing is left out, and it is registered with %+v", d)
			}
		})
	}
}

func version(s *servicetest.Service) (n uint64) {
	s.State.View(func(r *state.Reader) { n = r.Version() })
	return n
}

// What Nomad does not let be changed is only counted.
func TestWhatCannotBeChangedIsCounted(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	a := servicetest.Ask("job", "8G", 1)
	s.Submit(t, a)
	s.Register(a)
	s.Block(a, 1)
	registered(s, a, func(j *nomad.Job) { j.Dispatched = true })
	asks := []admit.Ask{servicetest.Reread(a, recorded(s, a).Decision)}
	for n, r := range []decide.Revision{
		{Group: "g", Hold: &admit.Hold{Kind: view.WaitsForRoom}}, {Group: "g", Exclude: []string{"id-a"}}, {Group: "g", Retry: true}, {Group: "g", Prefer: "id-b"}, {Group: "g", RoomMade: []decide.Promise{{Job: servicetest.KeyOf(a), Group: "g"}}},
	} {
		before := recorded(s, a)
		d, err := s.Revise(t.Context(), asks, r)
		after := recorded(s, a)
		if d != nil || err != nil || len(after.Excluded) > 0 || after.Decision.Hold != nil || !slices.Equal(after.Decision.Preferred, before.Decision.Preferred) {
			t.Errorf("%d: registered with %+v, %v, recorded as %+v", n, d, err, after)
		}
		if counted := !after.Attempts.Equal(before.Attempts); counted != (r.Prefer != "") {
			t.Errorf("%d: counted %+v", n, after.Attempts)
		}
	}
}

// What runs keeps the blocks that it runs with, whatever is recorded; what waits is decided
// about again; and a count beyond what the queue pays for is not taken for admitted.
func TestWhatIsRegisteredIsTakenOver(t *testing.T) {
	earlier := func(count int64) *admit.Earlier {
		return &admit.Earlier{Tasks: []admit.TaskDecision{{Task: "t", Devices: []admit.Device{{Name: "nvidia/slice", Count: count}}}}, Hold: "quota: as it was"}
	}
	for name, row := range map[string]struct {
		runs     bool
		count    int
		excluded bool
		was      *admit.Earlier
		slices   int64
		held     bool
		recorded int
	}{
		"what runs":                            {runs: true, count: 1, was: earlier(9), slices: 9, recorded: 1},
		"what waits":                           {count: 1, was: earlier(9), slices: 8, recorded: 1},
		"what runs and leaves a node out":      {runs: true, count: 1, excluded: true, was: earlier(9), slices: 8, recorded: 1},
		"what runs and came around":            {runs: true, count: 1, slices: 8, recorded: 1},
		"what grew, as far as the queue pays":  {runs: true, count: 2, was: earlier(8), slices: 8, recorded: 2},
		"what grew beyond what the queue pays": {runs: true, count: 3, was: earlier(8), slices: 8, recorded: 1},
		"what shrank":                          {runs: true, count: 0, was: earlier(8), slices: 8, recorded: 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			a := servicetest.Ask("job", "8G", 1)
			s.Submit(t, a)
			s.Register(a)
			if row.runs {
				s.Run(a, "alloc", "a", 0, 0, 8)
			}
			if row.excluded {
				revise(t, s, a, decide.Revision{Exclude: []string{"id-b"}, For: "x"})
			}
			a.Count, a.Was = row.count, row.was
			d, err := s.Revise(t.Context(), []admit.Ask{a}, decide.Revision{Group: "g", Align: true})
			if err != nil {
				t.Fatal(err)
			}
			g := recorded(s, a)
			if got := g.Decision.Tasks[0].Devices[0].Count; got != row.slices || g.Ask.Count != row.recorded || g.Decision.Hold != nil || g.Ask.Was != nil {
				t.Errorf("registered with %+v, recorded as %+v", d, g)
			}
		})
	}
}

// A group that runs in part and waits for its queue is scaled around the service: it waits on while
// the queue cannot pay for what is missing, and no longer.
func TestWhatRunsInPartWaitsOnForItsQueue(t *testing.T) {
	for name, row := range map[string]struct {
		count  int
		beside bool // another job holds the rest of the queue
		before bool // what runs is of an earlier version, without GPUs
		held   bool
	}{
		"of this version nothing runs": {count: 1, beside: true, before: true, held: true},
		"the queue cannot pay":         {count: 2, beside: true, held: true},
		"the queue pays":               {count: 2},
		"nothing is missing":           {count: 1, beside: true},
		"more than the queue can be":   {count: 3, held: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			s.Tenant(t, "beside", 50, "a", 1, 0, 8)
			if row.before {
				s.Tenant(t, "more", 50, "a", 1, 8, 1)
			}
			a := servicetest.Ask("job", "8G", 2)
			d := s.Submit(t, a)
			if d.Hold == nil || d.Hold.Kind != view.WaitsForQuota {
				t.Fatalf("two in half a queue are decided as %+v", d)
			}
			s.Register(a)
			slices := 8
			if row.before {
				slices = 0
			}
			s.Run(a, "alloc", "a", 0, 0, slices)
			s.LetTimePass()
			if !row.beside {
				s.End("alloc-beside")
			}
			a.Count, a.Was = row.count, servicetest.WasOf(d)
			if _, err := s.Revise(t.Context(), []admit.Ask{a}, decide.Revision{Group: "g", Align: true}); err != nil {
				t.Fatal(err)
			}
			if g := recorded(s, a); (g.Decision.Hold != nil) != row.held {
				t.Errorf("recorded with the hold %+v", g.Decision.Hold)
			}
		})
	}
}

// A group that waited for its queue in part and is registered without that is one that came around
// the service, where others are owed what it has started since: it is in excess as soon as they start.
func TestWhatStartedInsteadOfWaitingCameAroundTheService(t *testing.T) {
	for name, owed := range map[string]bool{"others are owed it": true, "nobody is": false} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
			beside := s.Tenant(t, "beside", 50, "a", 1, 0, 8)
			a := servicetest.Ask("job", "8G", 2)
			d := s.Submit(t, a)
			s.Register(a)
			s.Run(a, "alloc", "a", 0, 0, 8)
			s.LetTimePass()
			registered(s, beside, func(j *nomad.Job) { j.Groups[0].Restarts = true })
			failed := s.Alloc("alloc-beside")
			failed.Status, failed.Failed, failed.Returns = "failed", owed, owed
			s.State.Apply([]nomad.Change{{Alloc: &failed}}, s.Index)
			s.Run(a, "alloc-2", "a", 0, 8, 8)
			a.Was = servicetest.WasOf(d)
			a.Was.Hold = ""
			if _, err := s.Revise(t.Context(), []admit.Ask{a}, decide.Revision{Group: "g", Align: true}); err != nil {
				t.Fatal(err)
			}
			if g := recorded(s, a); g.Direct != owed || g.Decision.Hold != nil {
				t.Errorf("recorded as %+v", g)
			}
			s.Run(a, "alloc-3", "a", 1, 8, 8)
			a.Count = 3
			if _, err := s.Revise(t.Context(), []admit.Ask{a}, decide.Revision{Group: "g", Align: true}); err != nil {
				t.Fatal(err)
			}
			if g := recorded(s, a); g.Ask.Count != 2 {
				t.Errorf("scaled beyond what the queue pays for, it is recorded with %d", g.Ask.Count)
			}
		})
	}
}

// What is registered and was never recorded is adopted: with what it costs, and as work of a
// user's own unless a job that was admitted started it.
func TestWhatIsRegisteredIsAdopted(t *testing.T) {
	for name, row := range map[string]struct {
		parent  string
		was     *admit.Earlier
		runs    bool
		direct  bool
		explain string
	}{
		"around the service":       {direct: true, explain: "it came around the service; no preference is set"},
		"with the service's marks": {was: &admit.Earlier{Preferred: []string{"id-a"}, Tasks: []admit.TaskDecision{{Task: "t"}}}, direct: true, explain: "adopted as it is registered"},
		"a child":                  {parent: "parent", runs: true, explain: "it came around the service; no preference is set"},
		"what runs":                {runs: true, direct: true, explain: "it came around the service; no preference is set"},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 2))
			a := blocks("job", "nvidia/slice", 4)
			s.Show(a, false)
			registered(s, a, func(j *nomad.Job) { j.Parent = row.parent })
			if row.runs {
				s.Run(a, "alloc", "a", 0, 0, 4)
				other := a
				other.Group = "other"
				s.Run(other, "alloc-other", "a", 1, 0, 16)
			}
			a.Was = row.was
			if _, err := s.Revise(t.Context(), []admit.Ask{a}, decide.Revision{Group: "g", Exclude: []string{"id-b"}, For: "x"}); err != nil {
				t.Fatal(err)
			}
			g := recorded(s, a)
			want := place.Charge{}
			if row.runs {
				want = place.Charge{Milli: 250, MemoryMiB: 4096}
			}
			if g.Direct != row.direct || g.Decision.Explanation[0] != row.explain || g.Shown.Summary != row.explain || g.Cost != want || g.Key != a.Key() || g.Decision.Tasks[0].Task != "t" || !slices.Equal(g.Decision.Preferred, preferredOf(row.was)) {
				t.Errorf("recorded is %+v", g)
			}
		})
	}
}

func preferredOf(was *admit.Earlier) []string {
	if was == nil {
		return nil
	}
	return was.Preferred
}

// A gang is revised as one while nothing of it runs, and what runs of it is left alone.
func TestAGangIsRevisedAsOne(t *testing.T) {
	hold := &admit.Hold{Kind: view.WaitsForRoom, Sentence: "its nodes are gone"}
	for name, row := range map[string]struct {
		gang  bool
		runs  bool
		align bool
		held  bool // of the other group
	}{
		"one gang":                {gang: true, held: true},
		"another group by itself": {},
		"the other one runs":      {gang: true, runs: true, held: false},
		"what is only aligned":    {gang: true, runs: true, align: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 4))
			one := gang("job", 1, 50)
			two := one
			two.Group, two.Gang = "h", row.gang
			asks := []admit.Ask{one, two}
			d, err := s.Decide(t.Context(), asks, false)
			if err != nil {
				t.Fatal(err)
			}
			s.Settle(t.Context(), asks, d, true)
			s.Register(one)
			if row.runs {
				s.Run(two, "alloc", "a", 0, 0, 16)
			}
			for i := range asks {
				asks[i] = servicetest.Reread(asks[i], d[i])
			}
			r := decide.Revision{Group: "g", Hold: hold}
			if row.align {
				r = decide.Revision{Group: "g", Align: true}
			}
			if _, err := s.Revise(t.Context(), asks, r); err != nil {
				t.Fatal(err)
			}
			groups := s.Record(servicetest.KeyOf(one)).Groups
			if other := groups["h"].Decision.Hold; (other != nil) != row.held && !row.runs {
				t.Errorf("the other group is held: %+v", other)
			}
			if own := groups["g"].Decision.Hold; (own != nil) == row.align {
				t.Errorf("it is held: %+v", own)
			}
		})
	}
}

// What need not wait any more is told of once, by what it waited for.
func TestReleasesAreToldOf(t *testing.T) {
	s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
	s.Tenant(t, "tenant", 50, "a", 0, 0, 16)
	a := servicetest.Ask("waits", "8G", 1)
	s.Submit(t, a)
	s.Register(a)
	s.Block(a, 1)
	told := func() (n int) {
		for _, e := range s.Cluster(t).Events {
			if e.Kind == "release" && e.JobID == "waits" && e.Namespace == "default" && e.Text == "group g of job default/waits need not wait any more for quota" {
				n++
			}
		}
		return n
	}
	if d := revise(t, s, a, decide.Revision{Retry: true}); d != nil || told() != 0 {
		t.Fatalf("it still waits, and %+v; told of %d times", d, told())
	}
	s.End("alloc-tenant")
	s.Pass(time.Minute)
	if d := revise(t, s, a, decide.Revision{Retry: true}); d == nil || d.Hold != nil || told() != 1 {
		t.Fatalf("got %+v, told of %d times", d, told())
	}
	if c := s.Cluster(t); c.Decisions[0].JobID != "waits" || c.Decisions[0].Outcome != view.Placed {
		t.Errorf("people see %+v", c.Decisions[0])
	}
	s.Run(a, "alloc-waits", "a", 0, 0, 8)
	if revise(t, s, a, decide.Revision{Retry: true}); told() != 1 {
		t.Errorf("told of %d times", told())
	}
}
