// SPDX-License-Identifier: MPL-2.0

package show_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/outlook"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What failed and Nomad starts again is listed, with what its queue keeps for it meanwhile; a queue
// says what it keeps for this and for what waits for room.
func TestWhatIsStartedAgainIsShown(t *testing.T) {
	for name, row := range map[string]struct {
		change func(s *servicetest.Service, a admit.Ask)
		allocs int
		owed   int64
	}{
		"one of two":        {allocs: 1, owed: 1500},
		"another is there":  {change: func(s *servicetest.Service, a admit.Ask) { s.Run(a, "next", "a", 2, 0, 8) }, owed: 1000},
		"it waits for room": {change: func(s *servicetest.Service, a admit.Ask) { s.Block(a, 1) }, owed: 1500},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "queue \"q\" {\n gpus = 4\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 3))
			s.Tenant(t, "tenant", 50, "a", 0, 0, 16)
			a := servicetest.Ask("fails", "8G", 2)
			s.Submit(t, a)
			s.Register(a)
			changeJob(s, a, func(j *nomad.Job) { j.Groups[0].Restarts = true })
			s.Run(a, "runs", "a", 1, 0, 8)
			s.Run(a, "lost", "a", 1, 8, 8)
			s.Waits(t, "waits", "1", 50)
			s.LetTimePass()
			s.State.Do(func(tx *state.Tx) {
				for _, id := range []string{"fails", "waits"} {
					tx.Forget(nomad.JobKey{Namespace: "default", ID: id}, "g")
				}
			})
			since := s.Clock.At
			failed := s.Alloc("lost")
			failed.Status, failed.Failed, failed.Returns = "failed", true, true
			s.State.Apply([]nomad.Change{{Alloc: &failed}}, s.Index)
			s.Pass(time.Minute)
			if row.change != nil {
				row.change(s, a)
			}
			c := s.Cluster(t)
			if len(c.Returning) != row.allocs || c.Queues[0].OwedMilli != row.owed {
				t.Fatalf("%d milli are owed; listed are %+v", c.Queues[0].OwedMilli, c.Returning)
			}
			for _, g := range c.Returning {
				want := view.Returning{Namespace: "default", JobID: "fails", Group: "g", Allocs: 1, Milli: 500, Queue: "q", Ask: "8G", Since: since, Text: g.Text}
				if g != want || !strings.Contains(g.Text, "until then queue q keeps 0.5 GPU") {
					t.Errorf("got %+v", g)
				}
			}
			if hidden := c.Redact(func(string) bool { return false }); len(hidden.Returning) != 0 {
				t.Errorf("people of other namespaces see %+v", hidden.Returning)
			}
		})
	}
}

// What waits is listed with what it asks for, in the order in which it is tried.
func TestWhatWaitsIsShown(t *testing.T) {
	s := servicetest.New(t, "queue \"q\" {\n gpus = 4\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 2))
	s.Tenant(t, "tenant", 50, "a", 0, 0, 16)
	since := s.Clock.At
	low := servicetest.Ask("low", "2", 3)
	low.Priority = 10
	s.Submit(t, low)
	s.Register(low)
	s.Block(low, 3)
	s.Waits(t, "high", "8G", 60)
	list := s.Cluster(t).Pending
	if len(list) != 2 || list[0].JobID != "high" {
		t.Fatalf("waiting: %+v", list)
	}
	p := list[1]
	if p.Namespace != "default" || p.JobID != "low" || p.Group != "g" || p.Missing != 3 || p.Milli != 6000 || p.Queue != "q" || p.Priority != 10 || p.Ask != "2" || !p.Since.Equal(since) || p.Direct || p.Start != nil || p.Fits != nil {
		t.Errorf("got %+v", p)
	}
	if list[0].Ask != "8G" || list[0].Milli != 500 {
		t.Errorf("got %+v", list[0])
	}
	at := s.Clock.At
	s.State.Do(func(tx *state.Tx) {
		tx.NoteStarts(map[string]state.Start{"default/low/g": {Turn: 2, Of: 2, At: at, Outlook: outlook.Outlook{Known: true, Soonest: time.Minute, Likely: 2 * time.Minute, Latest: time.Hour}}})
		tx.NoteFits(map[string]*view.Fits{"default/low/g": {Ask: "1", Allocs: 1, Nodes: 1}}, nil)
	})
	list = s.Cluster(t).Pending
	if p := list[1]; p.Start == nil || p.Start.Turn != 2 || !p.Start.Latest.Equal(at.Add(time.Hour)) || p.Fits == nil || p.Fits.Ask != "1" || list[0].Start != nil || list[0].Fits != nil {
		t.Errorf("with estimates: %+v", list)
	}
}

// Why a group waits: what holds it, or else what was decided about it, unless that gave it a
// place; what nothing is known of waits for room.
func TestWhyAGroupWaits(t *testing.T) {
	short, summary := "no node has room for 8G now", "1 of 1 allocs wait for room"
	rest := func(g *record.Group) {
		g.Decision.Hold, g.Shown.Summary, g.Decision.Explanation = nil, summary, []string{summary, "first"}
	}
	for name, row := range map[string]struct {
		around bool
		change func(*record.Group)
		kind   string
		says   []string
		not    []string
	}{
		"no room":            {false, nil, view.WaitsForRoom, []string{short, "; 1 node: "}, []string{"around the service", "no node has room now", "waits for room"}},
		"the rest of it":     {false, rest, view.WaitsForRoom, []string{summary + "; first"}, []string{short}},
		"its own words":      {false, func(g *record.Group) { g.Decision.Explanation = []string{"first", "second"} }, view.WaitsForRoom, []string{short + "; first; second"}, nil},
		"held for quota":     {false, func(g *record.Group) { g.Decision.Hold = &admit.Hold{Kind: view.WaitsForQuota, Sentence: "too much"} }, view.WaitsForQuota, []string{"too much"}, []string{summary}},
		"it has a place":     {false, func(g *record.Group) { g.Decision.Hold, g.Assumed = nil, []place.Usage{{}} }, view.WaitsForRoom, []string{"no node has room now"}, []string{summary}},
		"nothing was said":   {false, func(g *record.Group) { g.Decision.Hold, g.Shown.Summary = nil, "" }, view.WaitsForRoom, []string{"no node has room now"}, []string{"1 node: "}},
		"around the service": {true, nil, view.WaitsForRoom, []string{"no node has room now; Nomad alone places it"}, []string{summary}},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1))
			s.Tenant(t, "tenant", 50, "a", 0, 0, 16)
			a := servicetest.Ask("job", "8G", 1)
			if !row.around {
				s.Submit(t, a)
			}
			if row.change != nil {
				changeRecord(s, a, row.change)
			}
			s.Show(a, !row.around)
			s.Block(a, 1)
			s.LetTimePass()
			p := waiting(t, s)
			if p.Kind != row.kind || p.Direct != row.around {
				t.Errorf("got %+v", p)
			}
			for _, text := range row.says {
				if !strings.Contains(p.Reason, text) {
					t.Errorf("it waits because %q, which lacks %q", p.Reason, text)
				}
			}
			for _, text := range row.not {
				if strings.Contains(p.Reason, text) {
					t.Errorf("it waits because %q, which has %q", p.Reason, text)
				}
			}
		})
	}
}

// What a group asks for is shown as it was decided: a change that Nomad did not show yet is.
func TestTheAskIsThatOfTheDecision(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 2))
	a := s.Waits(t, "job", "2", 50)
	changeRecord(s, a, func(g *record.Group) { g.Shown.Ask = "2(T4)" })
	if p := waiting(t, s); p.Ask != "2(T4)" {
		t.Errorf("got %q", p.Ask)
	}
	changeRecord(s, a, func(g *record.Group) { g.Shown.Ask = "" })
	if p := waiting(t, s); p.Ask != "2" {
		t.Errorf("got %q", p.Ask)
	}
}

// What was tried for a group in vain, and what cannot be, is told, all of it.
func TestWhatWasTriedInVainIsTold(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2))
	a := s.Waits(t, "job", "2", 50)
	if p := waiting(t, s); p.Note != "" {
		t.Errorf("nothing was tried: %q", p.Note)
	}
	key := servicetest.KeyOf(a)
	changes := []struct {
		do   func(tx *state.Tx)
		says string
	}{
		{func(tx *state.Tx) { tx.NoteFutile(key, "g", true) }, "no eviction that is allowed"},
		{func(tx *state.Tx) {
			tx.Note(view.Event{Kind: "idle", Namespace: "default", JobID: "job", AllocID: "x"})
		}, "it did not use its GPUs"},
		{func(tx *state.Tx) { tx.NoteUnmoved(key, "g", "nothing can be moved") }, "nothing can be moved"},
	}
	for i, change := range changes {
		s.State.Do(change.do)
		p := waiting(t, s)
		if got := len(strings.Split(p.Note, "; ")); got != i+1 || !strings.Contains(p.Note, change.says) {
			t.Errorf("after %d: %q", i+1, p.Note)
		}
	}
	changeRecord(s, a, func(g *record.Group) {
		g.Attempts = record.Attempts{Times: 2, At: s.Clock.At, Missing: 1, Why: "no CPU"}
	})
	if p := waiting(t, s); !strings.HasPrefix(p.Note, "room was made for it 2 times") {
		t.Errorf("after attempts: %q", p.Note)
	}
	changeJob(s, a, func(j *nomad.Job) { j.Dispatched = true })
	if p := waiting(t, s); !strings.HasSuffix(p.Note, "when it starts is up to Nomad") {
		t.Errorf("dispatched: %q", p.Note)
	}
}

// What fell back to the CPU is listed as long as it is registered so.
func TestWhatFellBackIsListed(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	var asks []admit.Ask
	for _, id := range []string{"z", "b", "on-gpu", "stopped", "gone"} {
		a := servicetest.Ask(id, "8G", 1)
		s.Submit(t, a)
		s.Register(a)
		if id != "on-gpu" {
			changeRecord(s, a, func(g *record.Group) { g.FellBack, g.Shown.Summary = s.Clock.At, "it waited for an hour" })
		}
		asks = append(asks, a)
	}
	for _, a := range asks {
		if a.JobID == "gone" {
			key := servicetest.KeyOf(a)
			s.State.Apply([]nomad.Change{{JobGone: &key}}, s.Index+1)
			continue
		}
		changeJob(s, a, func(j *nomad.Job) {
			if j.Stopped = a.JobID == "stopped"; a.JobID != "on-gpu" {
				j.Groups[0].Tasks[0] = nomad.Task{Name: "t"}
			}
		})
	}
	list := s.Cluster(t).OnCPU
	if len(list) != 2 || list[0].JobID != "b" {
		t.Fatalf("got %+v", list)
	}
	if want := (view.FellBack{Namespace: "default", JobID: "z", Group: "g", Ask: "8G", Since: s.Clock.At, Text: "it waited for an hour"}); list[1] != want {
		t.Errorf("got %+v, want %+v", list[1], want)
	}
	// What asks for a GPU again has not fallen back any more.
	changeJob(s, asks[0], func(j *nomad.Job) {
		j.Groups[0].Tasks[0].Devices = []nomad.DeviceAsk{{Name: "nvidia/slice", Count: 1}}
	})
	if list := s.Cluster(t).OnCPU; len(list) != 1 || list[0].JobID != "b" {
		t.Errorf("got %+v", list)
	}
}
