// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"slices"
	"strings"
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

// evict plans the evictions for one alloc of a group, or for all of a gang.
func evict(s *servicetest.Service, a admit.Ask) (e *decide.Eviction) {
	s.State.Do(func(tx *state.Tx) {
		g := tx.Record(servicetest.KeyOf(a)).Groups[a.Group]
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

// Groups that wait as well are kept off the room that is made, where Nomad could give it to
// them. Without those of a lower priority that may not be registered again, the room is made all the same.
func TestRivalsAreKeptOff(t *testing.T) {
	for name, row := range map[string]struct {
		rival    string // what it asks for
		priority int
		gang     bool
		child    bool // it was dispatched, and cannot be held
		plain    bool // it came around the service
		change   func(s *servicetest.Service, a admit.Ask)
		kept     bool
		none     bool // nothing is evicted at all

		bestEffort bool
		capped     int // the priority that counts of it: its queue was bounded after it was dispatched
	}{
		"of a lower one, on other candidates":     {rival: "1", priority: 30, change: candidates("id-b")},
		"of a lower one, which was promised room": {rival: "1", priority: 30, change: promised},
		"of a lower one, which cannot change":     {rival: "1", priority: 30, change: dispatched},
		"of a lower one, that is held for a gang": {rival: "1", priority: 30, gang: true},
		"which needs more than is there":          {rival: "2", priority: 50},
		"which waits for something else":          {rival: "1", priority: 50, change: heldBack},
		"around the service":                      {rival: "1", priority: 50, plain: true, kept: true},
		"around the service, for something else":  {rival: "2", priority: 50, plain: true},
		"which cannot be changed":                 {rival: "1", priority: 50, child: true, change: dispatched, none: true},
		"of a higher one, which does not count":   {rival: "1", priority: 100, child: true, change: dispatched, capped: 20},
		"of a higher one, of which less counts":   {rival: "1", priority: 100, child: true, change: dispatched, capped: 50, none: true},
		"of a lower one, which cannot be changed": {rival: "1", priority: 30, gang: true, change: dispatched},
	} {
		t.Run(name, func(t *testing.T) {
			text := servicetest.Quick
			if row.capped > 0 {
				text += fmt.Sprintf("queue \"team\" {\n max_priority = %d\n namespaces = [\"team\"]\n}\n", row.capped)
			}
			s := servicetest.New(t, text, servicetest.Machine("a", 1), servicetest.Machine("b", 1))
			s.Tenant(t, "low", 10, "a", 0, 0, 16)
			s.Tenant(t, "high", 90, "b", 0, 0, 16)
			rival := servicetest.Ask("rival", row.rival, 1)
			rival.Priority = row.priority
			if row.capped > 0 {
				rival.Namespace = "team"
			}
			rival.Child = row.child
			var a admit.Ask
			if row.gang {
				a = gang("waits", 1, 50)
				s.Submit(t, a)
				s.Register(a)
				s.Block(a, 1)
			} else {
				a = s.Waits(t, "waits", "1", 50)
			}
			if row.plain {
				rival = blocks("rival", "nvidia/slice", map[string]int64{"1": 16, "2": 17}[row.rival])
				rival.Priority = row.priority
			}
			if row.rival == "2" && !row.plain {
				joins(s, servicetest.Machine("c", 2))
				s.Tenant(t, "on-c", 90, "c", 0, 0, 16)
				s.Tenant(t, "also-on-c", 90, "c", 1, 0, 16)
			}
			if row.plain {
				s.Show(rival, false)
			} else {
				s.Submit(t, rival)
				s.Register(rival)
			}
			s.Block(rival, 1)
			if row.change != nil {
				row.change(s, rival)
			}
			s.Pass(servicetest.Settled)
			e := evict(s, a)
			if row.none {
				if e != nil {
					t.Errorf("it would take the room: %+v", e)
				}
				return
			}
			if e == nil || len(e.Victims) != 1 {
				t.Fatalf("got %+v", e)
			}
			if len(e.Rivals) == 1 && e.Rivals[0].BestEffort != row.bestEffort {
				t.Errorf("kept off are %+v", e.Rivals)
			}
			if kept := len(e.Rivals) == 1 && e.Rivals[0].Job.ID == "rival" && e.Rivals[0].Group == "g" && slices.Equal(e.Rivals[0].Nodes, []string{"id-a"}); kept != row.kept || !kept && len(e.Rivals) > 0 {
				t.Errorf("kept off are %+v", e.Rivals)
			}
		})
	}
}

func dispatched(s *servicetest.Service, a admit.Ask) {
	registered(s, a, func(j *nomad.Job) { j.Dispatched = true })
}

// heldBack has a group held for its quota.
func heldBack(s *servicetest.Service, a admit.Ask) {
	recordedAs(s, a, func(g *record.Group) { g.Decision.Hold = &admit.Hold{Kind: view.WaitsForQuota} })
}

// candidates binds a group to some nodes.
func candidates(nodes ...string) func(*servicetest.Service, admit.Ask) {
	return func(s *servicetest.Service, a admit.Ask) {
		recordedAs(s, a, func(g *record.Group) { g.Decision.Candidates = nodes })
		s.Show(a, true)
	}
}

// promised has room be made for a group.
func promised(s *servicetest.Service, a admit.Ask) {
	s.Assume(decide.Promise{Job: servicetest.KeyOf(a), Group: a.Group, Usage: place.Usage{NodeID: "id-b"}})
}

// Of many that wait with a lower priority those are kept off that Nomad may evaluate at once with the one that
// the room is for: the first in its order. Where the room comes free in parts, all that need only one are.
func TestHowManyRivalsAreKeptOff(t *testing.T) {
	for name, row := range map[string]struct {
		rivals  string // what they ask for
		victims int
		ending  bool // something else ends there
		kept    int
	}{
		"all of the room":                    {rivals: "1", victims: 1, kept: 20},
		"all of it, of two victims":          {rivals: "1", victims: 2, kept: 20},
		"a part of it, of one victim":        {rivals: "8G", victims: 1, kept: 20},
		"a part of it, of two":               {rivals: "8G", victims: 2, kept: 30},
		"a part of it, while something ends": {rivals: "4G", victims: 1, ending: true, kept: 30},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
			if row.ending {
				s.Tenant(t, "ends", 10, "a", 0, 12, 4)
				s.Tenant(t, "victim", 10, "a", 0, 0, 12)
			}
			for i := range row.victims {
				if !row.ending {
					s.Tenant(t, fmt.Sprint("victim", i), 10, "a", 0, i*16/row.victims, 16/row.victims)
				}
			}
			for i := range 30 {
				rival := servicetest.Ask(fmt.Sprintf("rival%02d", i), row.rivals, 1)
				rival.Child, rival.Priority = true, 20+(i*7)%30 // else it would be held
				s.Submit(t, rival)
				s.Register(rival)
				s.Block(rival, 1)
				s.Pass(servicetest.Settled)
			}
			a := s.Waits(t, "waits", "1", 90)
			if row.ending {
				s.Stop("alloc-ends")
			}
			e := evict(s, a)
			if e == nil || len(e.Rivals) != row.kept {
				t.Fatalf("got %+v", e)
			}
			s.State.Do(func(tx *state.Tx) {
				for i, r := range e.Rivals {
					if got := tx.PriorityOf(r.Job); got != 49-i || !r.BestEffort {
						t.Errorf("number %d that is kept off has priority %d: %+v", i, got, r)
					}
				}
			})
		})
	}
}

// What is being evicted from another node is kept off the room as well, before it waits, and what goes for this
// room is kept off that which is made there for another job.
func TestVictimsAreKeptOffOtherRoom(t *testing.T) {
	for name, row := range map[string]struct {
		priority int // of what is being evicted
		stops    bool
		kept     bool
	}{
		"it has not ended":          {20, true, true},
		"it runs on":                {20, false, false},
		"it comes before the other": {60, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1), servicetest.Machine("b", 1))
			going := s.Tenant(t, "going", row.priority, "a", 0, 0, 16)
			s.Tenant(t, "low", 10, "b", 0, 0, 16)
			other := s.Waits(t, "other", "1", 90)
			a := s.Waits(t, "waits", "1", 50)
			recordedAs(s, going, func(g *record.Group) { g.Excluded = map[string]string{"id-a": "default/other"} })
			s.Assume(decide.Promise{Job: servicetest.KeyOf(other), Group: "g", Usage: place.Usage{NodeID: "id-a", Priority: 90, Takes: []place.Take{{Milli: 1000, Slices: 16}}}})
			if row.stops {
				s.Stop("alloc-going")
			}
			e := evict(s, a)
			if e == nil || len(e.Victims) != 1 || e.Victims[0].Job.ID != "low" {
				t.Fatalf("got %+v", e)
			}
			kept := slices.ContainsFunc(e.Rivals, func(r decide.Rival) bool {
				return r.Job.ID == "going" && r.BestEffort && slices.Equal(r.Nodes, []string{"id-b"})
			})
			if also := e.Victims[0].Also["id-a"]; kept != row.kept || (also == "default/other") != row.stops {
				t.Errorf("kept off are %+v, and the victim also %q", e.Rivals, also)
			}
		})
	}
}

// A rival with completed allocs is registered again only once the one that the room is for has waited for as
// long as that repeats. One with a lower priority does not delay the room until then.
func TestARivalThatRepeatsIsLeftAlone(t *testing.T) {
	for name, row := range map[string]struct {
		priority    int
		waits       time.Duration
		evicts, off bool
	}{
		"a lower one, at first":           {30, time.Minute, true, false},
		"a lower one, later":              {30, 2 * time.Hour, true, true},
		"one of the same, at first":       {50, time.Minute, false, false},
		"one of the same priority, later": {50, 2 * time.Hour, false, false}, // it is its turn,
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1), servicetest.Machine("b", 1))
			rival := servicetest.Ask("rival", "1", 2)
			rival.JobType, rival.Priority = "batch", row.priority
			s.Submit(t, rival) // there is room for both
			s.Tenant(t, "low", 10, "a", 0, 0, 16)
			s.Register(rival)
			s.Run(rival, "rival-0", "b", 0, 0, 16)
			s.Pass(time.Hour)
			s.End("rival-0")
			s.Tenant(t, "high", 90, "b", 0, 0, 16)
			s.Block(rival, 1)
			a := s.Waits(t, "waits", "1", 50)
			s.Pass(row.waits)
			e := evict(s, a)
			if (e != nil) != row.evicts || e != nil && len(e.Rivals) > 0 != row.off {
				t.Errorf("got %+v", e)
			}
		})
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

// Of two of the same priority that wait, the one goes first that came first, once it has waited
// for a minute; of two priorities the higher one. What is held stays so until its turn.
func TestWhoOvertakes(t *testing.T) {
	for name, row := range map[string]struct {
		first, second int // priorities, in the order in which they come
		apart         time.Duration
		overtakes     bool // would the second take the room of the first?
	}{
		"the same, soon":  {50, 50, 30 * time.Second, false},
		"the same, later": {50, 50, time.Minute, false}, // Nomad has the first one's evaluation first
		"a lower one":     {50, 40, time.Minute, false},
		"a higher one":    {50, 60, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2))
			s.Tenant(t, "one", 5, "a", 0, 0, 16)
			s.Tenant(t, "two", 95, "a", 1, 0, 16)
			s.Waits(t, "first", "2", row.first)
			s.Pass(row.apart)
			a := s.Waits(t, "second", "1", row.second)
			s.State.Do(func(tx *state.Tx) {
				w := decide.NewWindow(tx)
				g := tx.Record(servicetest.KeyOf(a)).Groups["g"]
				if got := w.Overtakes(tx, servicetest.KeyOf(a), &g); got != row.overtakes {
					t.Errorf("it overtakes: %t", got)
				}
			})
		})
	}
}
