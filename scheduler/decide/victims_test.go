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
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// evict plans the evictions for one alloc of a group, or for all of a gang.
func evict(s *servicetest.Service, a admit.Ask) (e *decide.Eviction) {
	s.State.Do(func(tx *state.Tx) {
		g := tx.Queue.Record(servicetest.KeyOf(a)).Groups[a.Group]
		if h := g.Decision.Hold; h != nil && (g.Ask.Gang || h.Kind != view.WaitsForRoom) {
			e = decide.EvictForAll(tx, servicetest.KeyOf(a), &g, decide.NewWindow(tx))
			return
		}
		e = decide.Evict(tx, servicetest.KeyOf(a), &g, decide.NewWindow(tx))
	})
	return e
}

// Work is evicted for a priority that is higher by so much at least; the lowest goes first, and
// each is told who it goes for.
func TestEvictionsKeepTheGap(t *testing.T) {
	for _, row := range []struct {
		gap, low int
		evicts   bool
	}{{1, 49, true}, {1, 50, false}, {10, 41, false}, {10, 40, true}, {10, 39, true}} {
		s := servicetest.New(t, strings.Replace(servicetest.Quick, "{\n", "{\n min_priority_gap = "+string(rune('0'+row.gap/10))+string(rune('0'+row.gap%10))+"\n", 1), servicetest.Machine("a", 2))
		s.Tenant(t, "low", row.low, "a", 0, 0, 16)
		s.Tenant(t, "high", 90, "a", 1, 0, 16)
		for _, a := range []admit.Ask{servicetest.Ask("one", "8G", 1), gang("all", 1, 50)} {
			s.Submit(t, a)
			s.Register(a)
			s.Block(a, 1)
			s.Pass(servicetest.Settled)
			e := evict(s, a)
			if (e != nil) != row.evicts {
				t.Fatalf("with a gap of %d, of %d: %+v", row.gap, row.low, e)
			}
			if e == nil {
				continue
			}
			if e.Reclaim || e.Idle || e.Moves || len(e.Victims) != 1 || e.Promises[0].Usage.Priority != 50 || e.Promises[0].Job != servicetest.KeyOf(a) {
				t.Errorf("got %+v", e)
			}
			if v := e.Victims[0]; v.AllocID != "alloc-low" || v.Job.ID != "low" || v.Group != "g" || v.Node != "id-a" || v.Priority != row.low || v.Gang || v.Quota != "" ||
				!strings.HasSuffix(v.Text, "must leave node a: job default/"+a.JobID+" has priority 50 and finds no room for "+a.String()) {
				t.Errorf("it evicts %+v", v)
			}
		}
	}
}

// What is about to end makes room by itself: nothing more is evicted, and Nomad is not taken to
// use the room before it is there.
func TestWhatEndsMakesRoom(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	s.Tenant(t, "low", 20, "a", 0, 0, 16)
	s.Tenant(t, "other", 30, "b", 0, 0, 16)
	a := s.Waits(t, "waits", "1", 50)
	s.Stop("alloc-other")
	if e := evict(s, a); e == nil || len(e.Victims) != 0 || e.Room.Node() != "id-b" {
		t.Errorf("while it ends: %+v", e)
	}
	s.End("alloc-other")
	if e := evict(s, a); e != nil {
		t.Errorf("Nomad is about to use it: %+v", e)
	}
}

// A victim leaves out its node; where all of a gang's room has to be there before anything
// starts, all of that.
func TestWhereVictimsStayAway(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1), servicetest.Machine("b", 1), servicetest.Machine("c", 1))
	for i, name := range []string{"a", "b", "c"} {
		s.Tenant(t, "low-"+name, 10*(i+1), name, 0, 0, 16)
	}
	a := gang("gang", 2, 50)
	s.Submit(t, a)
	s.Register(a)
	s.Block(a, 2)
	s.Pass(servicetest.Settled)
	e := evict(s, a)
	if e == nil || len(e.Victims) != 2 || !slices.Equal(e.Nodes(), []string{"id-a", "id-b"}) || e.Victims[0].AllocID != "alloc-low-a" || e.Victims[1].AllocID != "alloc-low-b" {
		t.Fatalf("got %+v", e)
	}
	for i := range e.Victims {
		if got := e.KeptOff(&e.Victims[i]); !slices.Equal(got, []string{"id-a", "id-b"}) {
			t.Errorf("%s is kept off %v", e.Victims[i].AllocID, got)
		}
	}
	one := s.Waits(t, "one", "1", 60)
	e = evict(s, one)
	if e == nil || len(e.Victims) != 1 || !slices.Equal(e.KeptOff(&e.Victims[0]), []string{"id-a"}) {
		t.Errorf("got %+v", e)
	}
}

// A promise books its room, for others to stay off, until it is kept or given up; one of a node
// that is gone is none.
func TestPromises(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	s.Tenant(t, "low", 20, "a", 0, 0, 16)
	a := s.Waits(t, "waits", "8G", 50)
	e := evict(s, a)
	if e == nil {
		t.Fatal("nothing is evicted")
	}
	p := e.Promises[0]
	before := version(s)
	s.Assume(p)
	if list := s.AllAssumed(); len(list) != 1 || list[0].Group != "g" || version(s) == before {
		t.Errorf("booked is %+v", list)
	}
	before = version(s)
	s.State.Do(p.Forget)
	if list := s.AllAssumed(); len(list) != 0 || version(s) == before {
		t.Errorf("given up, and booked is %+v", list)
	}
	p.Usage.NodeID = "id-gone"
	s.Assume(p)
	if list := s.AllAssumed(); len(list) != 0 {
		t.Errorf("on a node that is gone %+v is booked", list)
	}
}

// A queue takes back what was borrowed, and it is said so; only where priority alone would not
// have done it.
func TestWhatIsReclaimedIsSaid(t *testing.T) {
	const queues = "queue \"o\" {\n gpus = 1\n namespaces = [\"default\"]\n}\nqueue \"l\" {\n gpus = 0\n%s namespaces = [\"l\"]\n}\n"
	for name, row := range map[string]struct {
		priority  int
		protected string
		reclaim   bool
	}{
		"from an equal":                    {priority: 50, reclaim: true},
		"from a higher one":                {priority: 60, reclaim: true},
		"from a lower one by priority":     {priority: 20},
		"from a lower one that is guarded": {priority: 20, protected: " protected = true\n", reclaim: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.Quick+strings.Replace(queues, "%s", row.protected, 1), servicetest.Machine("a", 1))
			low := servicetest.Ask("low", "1", 1)
			low.Namespace, low.Priority = "l", row.priority
			s.Submit(t, low)
			s.Register(low)
			s.Run(low, "alloc-low", "a", 0, 0, 16)
			a := s.Waits(t, "waits", "1", 50)
			e := evict(s, a)
			if e == nil || e.Reclaim != row.reclaim || len(e.Victims) != 1 || e.Victims[0].Queue != "l" {
				t.Fatalf("got %+v", e)
			}
			if says := strings.Contains(e.Text, "takes back what was borrowed from queue o, for 1"); says != row.reclaim || says == strings.Contains(e.Text, "has priority 50") {
				t.Errorf("it says %q", e.Text)
			}
		})
	}
}
