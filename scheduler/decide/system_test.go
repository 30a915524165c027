// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// system is a service of five machines on some of which a system job runs, on half a GPU each.
func system(t *testing.T, gpus string, on ...string) (*servicetest.Service, admit.Ask) {
	t.Helper()
	text := servicetest.OneGPU
	if gpus == "" {
		text = ""
	}
	s := servicetest.New(t, strings.Replace(text, "gpus = 1\n", "gpus = "+gpus+"\n", 1), servicetest.Machine("a", 1))
	a := servicetest.Ask("agent", "8G", 1)
	a.JobType = "system"
	s.Submit(t, a)
	s.Register(a)
	for _, name := range []string{"b", "c", "d"} {
		s.State.Do(func(tx *state.Tx) {})
		joins(s, servicetest.Machine(name, 1))
	}
	for _, name := range on {
		s.Run(a, "alloc-"+name, name, 0, 0, 8)
	}
	return s, a
}

// A system job that its queue cannot pay for everywhere is held to the nodes where it runs,
// but for the one that it leaves.
func TestASystemJobIsHeldToItsNodes(t *testing.T) {
	s, a := system(t, "4", "d", "b", "a")
	s.Run(a, "second-of-b", "b", 0, 8, 8)
	other := a
	other.Group = "other"
	s.Run(other, "alloc-other", "c", 0, 0, 1)
	for without, want := range map[string][]string{"": {"id-a", "id-b", "id-d"}, "id-b": {"id-a", "id-d"}, "id-c": {"id-a", "id-b", "id-d"}} {
		s.State.Do(func(tx *state.Tx) {
			r := decide.HoldToNodes(tx, servicetest.KeyOf(a), "g", without)
			if r.Group != "g" || r.Everywhere || !slices.Equal(r.Only, want) {
				t.Errorf("without %q: %+v", without, r)
			}
		})
	}
	s.Stop("alloc-d")
	d := revise(t, s, a, held(s, a, "id-a"))
	if d == nil || d.Hold != nil || !slices.Equal(d.Candidates, []string{"id-b"}) {
		t.Fatalf("it is registered with %+v", d)
	}
	if again := s.Submit(t, a); !slices.Equal(again.Candidates, []string{"id-b"}) {
		t.Errorf("submitted again it goes to %v", again.Candidates)
	}
	if d := revise(t, s, a, decide.Revision{Everywhere: true}); d == nil || d.Candidates != nil {
		t.Errorf("everywhere: %+v", d)
	}
	for _, id := range []string{"alloc-a", "alloc-b", "second-of-b"} {
		s.End(id)
	}
	if d := revise(t, s, a, held(s, a, "id-a")); d == nil || !slices.Equal(d.Candidates, []string{"none"}) {
		t.Errorf("where none runs it goes to %+v", d)
	}
}

func held(s *servicetest.Service, a admit.Ask, without string) (r decide.Revision) {
	s.State.Do(func(tx *state.Tx) { r = decide.HoldToNodes(tx, servicetest.KeyOf(a), "g", without) })
	return r
}

// It gets back as many nodes as its queue can pay for: one at a time, or all.
func TestASystemJobIsGivenWhatItsQueuePaysFor(t *testing.T) {
	for name, row := range map[string]struct {
		gpus  string
		only  []string
		count int
		want  []string // nil: everywhere
		not   bool
	}{
		"all":                             {gpus: "2", only: []string{"id-b"}, count: 1},
		"all but one":                     {gpus: "1.5", only: []string{"id-b"}, count: 1, want: []string{"id-a", "id-b"}},
		"one":                             {gpus: "1", only: []string{"id-b"}, count: 1, want: []string{"id-a", "id-b"}},
		"none":                            {gpus: "0.9", only: []string{"id-b"}, count: 1, not: true},
		"the first, of one held to none":  {gpus: "1", only: []string{"none"}, count: 1, want: []string{"id-a"}},
		"in order":                        {gpus: "1", only: []string{"id-a", "id-c"}, count: 1, want: []string{"id-a", "id-b", "id-c"}},
		"a count of none costs as one":    {gpus: "0.9", only: []string{"id-b"}, not: true},
		"two on each cost twice":          {gpus: "1", only: []string{"id-b"}, count: 2, not: true},
		"without a queue it is held free": {only: []string{"id-b"}, count: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, a := system(t, row.gpus, "b")
			g := recorded(s, a)
			g.Only, g.Ask.Count = row.only, row.count
			s.State.Do(func(tx *state.Tx) {
				r, may := decide.Widen(tx, servicetest.KeyOf(a), &g)
				if may == row.not || may && (r.Group != "g" || r.Everywhere != (row.want == nil) || !slices.Equal(r.Only, row.want)) {
					t.Errorf("got %+v, %t", r, may)
				}
			})
		})
	}
}

// What Nomad starts on its own, on nodes that it chooses, prefers no GPU: it would be that of one node.
func TestWhatNomadPlacesPrefersNoGPU(t *testing.T) {
	for name, change := range map[string]func(a *admit.Ask){
		"a service":        func(*admit.Ask) {},
		"a system job":     func(a *admit.Ask) { a.JobType = "system" },
		"a sysbatch job":   func(a *admit.Ask) { a.JobType = "sysbatch" },
		"a periodic job":   func(a *admit.Ask) { a.JobType, a.Later = "batch", true },
		"a group of three": func(a *admit.Ask) { a.Count = 3 },
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 2))
		a := servicetest.Ask("job", "4G", 1)
		change(&a)
		d := s.Submit(t, a)
		if prefers := d.Tasks[0].Devices[0].Prefer != ""; prefers != (name == "a service") || d.Group != "g" {
			t.Errorf("%s, group %q, prefers %q", name, d.Group, d.Tasks[0].Devices[0].Prefer)
		}
	}
}

// A system job that is submitted again is refused where its queue cannot pay for what it starts by now.
func TestASystemJobIsPaidForEachTime(t *testing.T) {
	for name, row := range map[string]struct {
		taken   int // slices of another job
		runs    bool
		refused bool
	}{
		"there is quota":       {taken: 8},
		"there is too little":  {taken: 9, refused: true},
		"it runs there anyway": {taken: 8, runs: true},
	} {
		s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
		a := servicetest.Ask("agent", "8G", 1)
		a.JobType = "system"
		s.Submit(t, a)
		s.Register(a)
		if row.runs {
			s.Run(a, "alloc", "a", 1, 0, 8)
		}
		other := servicetest.Ask("other", "1G", 1)
		s.Show(other, false)
		s.Run(other, "alloc-other", "a", 0, 0, row.taken)
		s.LetTimePass()
		if _, err := s.Decide(t.Context(), []admit.Ask{a}, true); (err != nil) != row.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}
