// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// revise has a registered job changed, and Nomad take it.
func revise(t *testing.T, s *servicetest.Service, a admit.Ask, r decide.Revision) *admit.Decision {
	t.Helper()
	r.Group = a.Group
	if known := s.Record(servicetest.KeyOf(a)); known != nil && a.Was == nil {
		a = servicetest.Reread(a, known.Groups[a.Group].Decision)
	}
	d, err := s.Revise(t.Context(), []admit.Ask{a}, r)
	if err != nil {
		t.Fatal(err)
	}
	if d == nil {
		return nil
	}
	s.Settle(t.Context(), []admit.Ask{a}, d, true)
	a.Was = nil
	s.Register(a)
	return &d[0]
}

// recorded is what is recorded of a group.
func recorded(s *servicetest.Service, a admit.Ask) record.Group {
	return s.Record(servicetest.KeyOf(a)).Groups[a.Group]
}

// A gang that Nomad started in part waits as one: the first time it is tried again at once,
// then after a rest, and when its owner submits it again.
func TestAGangThatWentBackRests(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 2))
	a := gang("gang", 2, 50)
	s.Submit(t, a)
	s.Register(a)
	s.Block(a, 2)
	why := decide.SentBack(1, &a, "a port is taken")
	if want := "Nomad started 1 of its 2 allocs, which start together, and says of the others: a port is taken"; why != want {
		t.Errorf("it says %q", why)
	}
	if got := decide.SentBack(0, &a, ""); strings.Contains(got, "says") {
		t.Errorf("Nomad said nothing, and it says %q", got)
	}
	for n, row := range []struct {
		rest  time.Duration
		until string
	}{{0, ""}, {2 * time.Minute, "it went back 2 times and is tried again at 08:02 UTC, or when it is submitted again"}, {4 * time.Minute, "it went back 3 times and is tried again at 08:06 UTC"}} {
		d := revise(t, s, a, decide.Revision{SentBack: why})
		if d == nil || d.Hold == nil || d.Hold.Kind != view.WaitsForRoom || !strings.HasPrefix(d.Hold.Sentence, why) || !strings.Contains(d.Hold.Sentence, row.until) || strings.Contains(d.Hold.Sentence, "went back") != (row.rest > 0) {
			t.Fatalf("sent back %d times: %+v", n+1, d)
		}
		if got := recorded(s, a).Attempts.Times; got != n+1 {
			t.Errorf("sent back %d times, recorded are %d", n+1, got)
		}
		if row.rest > 0 {
			s.Pass(row.rest - time.Second)
			if d := revise(t, s, a, decide.Revision{Retry: true}); d != nil && d.Hold == nil {
				t.Fatalf("it does not rest: %+v", d)
			}
			s.Pass(time.Second)
		}
		if d := revise(t, s, a, decide.Revision{Retry: true}); d == nil || d.Hold != nil {
			t.Fatalf("after its rest: %+v", d)
		}
	}
	revise(t, s, a, decide.Revision{SentBack: why})
	if d := s.Submit(t, a); d.Hold != nil {
		t.Errorf("submitted again it waits: %+v", d.Hold)
	}
}

// Evictions that came to nothing are not repeated at once, and for a gang that Nomad does
// not start as a whole not at all.
func TestEvictionsInVainAreNotRepeated(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for name, row := range map[string]struct {
		gang, held bool
		times      int
		missing    int
		age        time.Duration
		may        bool
	}{
		"the first":                               {may: true},
		"the second":                              {times: 1, missing: 1, may: true},
		"none after two":                          {times: 2, missing: 1, age: 2*time.Minute - 1},
		"until the rest is over":                  {times: 2, missing: 1, age: 2 * time.Minute, may: true},
		"which is longer after three":             {times: 3, missing: 1, age: 4*time.Minute - 1},
		"and over then":                           {times: 3, missing: 1, age: 4 * time.Minute, may: true},
		"a gang that Nomad does not start":        {gang: true, times: 2, missing: 1, age: time.Hour},
		"a gang that is held, during its rest":    {gang: true, held: true, times: 2, missing: 1, age: time.Minute},
		"a gang that is held, after it":           {gang: true, held: true, times: 2, missing: 1, age: time.Hour, may: true},
		"a gang that went back":                   {gang: true, held: true, times: 2, age: time.Hour},
		"a gang that went back once is tried yet": {gang: true, held: true, times: 1, may: true},
	} {
		g := record.Group{Ask: admit.Ask{Gang: row.gang}, Attempts: record.Attempts{Times: row.times, Missing: row.missing, At: now.Add(-row.age)}}
		if row.held {
			g.Decision.Hold = &admit.Hold{Kind: view.WaitsForRoom}
		}
		if got := decide.MayEvictFor(&g, now); got != row.may {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// Room that was made and not used is counted, with what Nomad says of it: only where the same
// allocs have waited ever since.
func TestRoomThatIsNotUsedIsCounted(t *testing.T) {
	for name, row := range map[string]struct {
		between func(s *servicetest.Service, a admit.Ask) // the first room and the second
		times   int
		why     string
	}{
		"nothing started":       {func(*servicetest.Service, admit.Ask) {}, 2, "a port is taken"},
		"one of two started":    {func(s *servicetest.Service, a admit.Ask) { blockedFor(s, a, 1, s.Clock.At.Add(-time.Hour)) }, 1, ""},
		"more wait than before": {func(s *servicetest.Service, a admit.Ask) { blockedFor(s, a, 3, s.Clock.At.Add(-time.Hour)) }, 2, "a port is taken"},
		"it waits anew":         {func(s *servicetest.Service, a admit.Ask) { s.Pass(time.Second); blockedFor(s, a, 2, s.Clock.At) }, 1, ""},
		"since that moment":     {func(s *servicetest.Service, a admit.Ask) { blockedFor(s, a, 2, s.Clock.At) }, 1, ""},
		"nothing waits any more": {func(s *servicetest.Service, a admit.Ask) {
			key := servicetest.KeyOf(a)
			s.State.Apply([]nomad.Change{{Unblocked: &key}}, s.Index+1)
		}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 4))
			a := servicetest.Ask("waits", "1", 2)
			s.Submit(t, a)
			s.Register(a)
			blockedFor(s, a, 2, s.Clock.At)
			s.Pass(time.Minute)
			revise(t, s, a, decide.Revision{Prefer: "id-a"})
			if got := recorded(s, a).Attempts; !got.Equal(record.Attempts{Times: 1, At: s.Clock.At, Missing: 2, Nodes: map[string]record.Tried{"id-a": {Index: 1, At: s.Clock.At}}}) {
				t.Fatalf("after the first %+v", got)
			}
			row.between(s, a)
			revise(t, s, a, decide.Revision{Prefer: "id-a"})
			if got := recorded(s, a).Attempts; got.Times != row.times || got.Why != row.why || got.Missing < 1 {
				t.Errorf("after the second %+v", got)
			}
		})
	}
}

// blockedFor shows that Nomad cannot place some allocs since a moment, because a port is taken.
func blockedFor(s *servicetest.Service, a admit.Ask, missing int, since time.Time) {
	s.Index++
	s.State.Apply([]nomad.Change{{Blocked: &nomad.Blocked{
		Index: s.Index, EvalID: "e-" + a.JobID, Key: servicetest.KeyOf(a), Missing: map[string]int{a.Group: missing},
		Why: map[string]string{a.Group: "a port is taken"}, Since: since,
	}}}, s.Index)
}

// A node where room was made in vain is left out, unless another job took the room: one with a lower priority
// explains that only where Nomad says that devices are missing, and nothing else.
func TestANodeWhoseRoomAnotherTookIsNotLeftOut(t *testing.T) {
	for name, row := range map[string]struct {
		priority   int // of the other; 0: there is none
		forDevices bool
		after      time.Duration
		leftOut    bool
	}{
		"none, for devices":                   {0, true, 0, true},
		"a lower one, for devices":            {20, true, time.Second, false},
		"a lower one, for another reason":     {20, false, time.Second, true},
		"a lower one, for devices, but later": {20, true, state.Unplaced, true},
		"an equal one, for another reason":    {50, false, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
			a := servicetest.Ask("waits", "1", 1)
			a.Priority = 50
			s.Submit(t, a)
			s.Register(a)
			s.Index++
			s.State.Apply([]nomad.Change{{Blocked: &nomad.Blocked{
				Index: s.Index, EvalID: "e", Key: servicetest.KeyOf(a), Missing: map[string]int{"g": 1}, Since: s.Clock.At, ForDevices: map[string]bool{"g": row.forDevices},
			}}}, s.Index)
			s.Pass(time.Minute)
			revise(t, s, a, decide.Revision{Prefer: "id-a"})
			s.Pass(row.after)
			if row.priority > 0 {
				s.Tenant(t, "other", row.priority, "a", 0, 0, 16)
			}
			s.Pass(3 * time.Minute)
			revise(t, s, a, decide.Revision{Prefer: "id-b"})
			if _, leftOut := recorded(s, a).Attempts.Nodes["id-a"]; leftOut != row.leftOut {
				t.Errorf("tried in vain: %+v", recorded(s, a).Attempts.Nodes)
			}
		})
	}
}

// What Nomad says of a group that is held, it says of the hold: it is no reason why the room
// that is made for it was not used.
func TestOfAHeldGangNomadOnlyNamesTheHold(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2))
	s.Tenant(t, "low", 10, "a", 0, 0, 16)
	a := gang("gang", 2, 50)
	if d := s.Submit(t, a); d.Hold == nil {
		t.Fatalf("it is not held: %+v", d)
	}
	s.Register(a)
	blockedFor(s, a, 2, s.Clock.At)
	s.Pass(time.Minute)
	e := evict(s, a)
	if e == nil || len(e.Promises) != 2 {
		t.Fatalf("room is made for %+v", e)
	}
	others := decide.Promise{Job: servicetest.KeyOf(servicetest.Ask("low", "1", 1)), Group: "g"}
	for n := range 2 {
		s.Pass(time.Minute)
		if d := revise(t, s, a, decide.Revision{RoomMade: append(e.Promises, others)}); d != nil && d.Hold == nil {
			t.Fatalf("it is let go: %+v", d)
		}
		if got := recorded(s, a); !got.Attempts.Equal(record.Attempts{Times: n + 1, At: s.Clock.At, Missing: 2}) || got.Decision.Hold == nil || len(got.Assumed) != 2 {
			t.Errorf("after %d: %+v, held %+v, promised %+v", n+1, got.Attempts, got.Decision.Hold, got.Assumed)
		}
	}
}
