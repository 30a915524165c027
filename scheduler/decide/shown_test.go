// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What people see of a decision is what was decided: where each alloc goes and on which GPUs,
// the next best, and why the others will not do.
func TestADecisionIsShownAsItIs(t *testing.T) {
	s := servicetest.New(t, "placement {\n policy = \"PACK\"\n}\nqueue \"q\" {\n gpus = 8\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 2), servicetest.Machine("b", 2), servicetest.Machine("c", 1))
	s.Tenant(t, "on-b", 50, "b", 0, 0, 4)
	s.Tenant(t, "on-c", 50, "c", 0, 0, 16)
	s.Pass(time.Minute)
	a := servicetest.Ask("job", "8G", 1)
	a.Priority = 60
	d := s.Submit(t, a)
	v := s.Cluster(t).Decisions[0]
	if v.Namespace != "default" || v.JobID != "job" || v.Group != "g" || v.Queue != "q" || v.Priority != 60 || v.Ask != "8G" || v.Policy != "PACK" || v.Outcome != view.Placed || !v.At.Equal(s.Clock.At) {
		t.Errorf("people see %+v", v)
	}
	if len(v.Choices) != 1 || v.Choices[0].NodeID != "id-b" || v.Choices[0].NodeName != "b" || !slices.Equal(v.Choices[0].Groups, []string{"nvidia/slice/T4/0"}) || len(v.Choices[0].GPUs) != 1 ||
		len(v.Choices[0].Terms) == 0 || v.Choices[0].Why == "" || v.Choices[0].Score == 0 || v.Choices[0].WholeNow != 1 {
		t.Errorf("it goes to %+v", v.Choices)
	}
	if len(v.RunnersUp) != 1 || v.RunnersUp[0].NodeID != "id-a" || v.RunnersUp[0].NodeName != "a" || v.RunnersUp[0].Why == "" || len(v.RunnersUp[0].Terms) == 0 || v.RunnersUp[0].Score > v.Choices[0].Score {
		t.Errorf("next best are %+v", v.RunnersUp)
	}
	if v.Fits != 2 || len(v.Reasons) != 1 || v.Reasons[0].Nodes != 1 || v.Reasons[0].Never {
		t.Errorf("%d fit, and the others not: %+v", v.Fits, v.Reasons)
	}
	if want := "goes to b (nvidia/slice/T4/0): " + v.Choices[0].Why; v.Summary != want || d.Explanation[0] != want || d.Explanation[1] != "next best: a: "+v.RunnersUp[0].Why || !strings.HasPrefix(d.Explanation[2], "1 node: ") {
		t.Errorf("it says %q", d.Explanation)
	}
	a.JobID, a.Policy = "own", "SPREAD"
	s.Submit(t, a)
	if v := s.Cluster(t).Decisions[0]; v.Policy != "SPREAD" {
		t.Errorf("people see %+v", v)
	}
}

// Where evictions would help they are spoken of, if any are made at all.
func TestPreemptionIsOnlySpokenOfWhereItIsDone(t *testing.T) {
	for enabled, want := range map[string]int{"true": 1, "false": 0} {
		s := servicetest.New(t, "preemption {\n min_run_time = \"0s\"\n enabled = "+enabled+"\n}\n", servicetest.Machine("a", 1))
		s.Tenant(t, "low", 10, "a", 0, 0, 16)
		d := s.Submit(t, servicetest.Ask("job", "8G", 1))
		v := s.Record(nomad.JobKey{Namespace: "default", ID: "job"}).Groups["g"].Shown
		if len(v.Reasons) != 1 || v.Reasons[0].Preempted != want || strings.Contains(strings.Join(d.Explanation, "\n"), "after preempting") != (want > 0) {
			t.Errorf("enabled %s: %+v, %q", enabled, v.Reasons, d.Explanation)
		}
		if v.Outcome != view.Held || v.Summary != "waits for room: no node has room for 8G now" || d.Explanation[0] != v.Summary {
			t.Errorf("enabled %s: %+v, %q", enabled, v, d.Explanation)
		}
	}
}

// Of many allocs the first four are named.
func TestManyPlacesAreCut(t *testing.T) {
	for count, want := range map[int]string{
		1: "goes to a (nvidia/slice/T4/0): ",
		2: "goes to a (nvidia/slice/T4/0), b (nvidia/slice/T4/0)",
		5: "goes to a (nvidia/slice/T4/0), b (nvidia/slice/T4/0), c (nvidia/slice/T4/0), d (nvidia/slice/T4/0), e (nvidia/slice/T4/0)",
		6: "goes to a (nvidia/slice/T4/0), b (nvidia/slice/T4/0), c (nvidia/slice/T4/0), d (nvidia/slice/T4/0), 2 more",
	} {
		var machines []*nomad.Node
		for i := range 6 {
			machines = append(machines, servicetest.Machine(string(rune('a'+i)), 1))
		}
		s := servicetest.New(t, "", machines...)
		a := servicetest.Ask("job", "1", count)
		d := s.Submit(t, a)
		if got := d.Explanation[0]; got != want && !(count == 1 && strings.HasPrefix(got, want)) {
			t.Errorf("%d allocs: %q", count, got)
		}
		if want := min(count, 6); len(d.Preferred) != want || len(s.Record(servicetest.KeyOf(a)).Groups["g"].Shown.Choices) != want {
			t.Errorf("%d allocs go to %v", count, d.Preferred)
		}
	}
}

// A job of which a part waits says of how many, and is placed as far as there is room.
func TestAPartWaits(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 2), servicetest.Machine("b", 1))
	a := servicetest.Ask("job", "1", 5)
	d := s.Submit(t, a)
	g := recorded(s, a)
	if d.Hold != nil || d.Outcome != view.Waits || d.Explanation[0] != "2 of 5 allocs wait for room" || len(g.Assumed) != 3 || g.Shown.Summary != d.Explanation[0] || g.Shown.Outcome != view.Waits || len(g.Shown.Choices) != 3 || len(d.Preferred) != 2 {
		t.Errorf("got %+v, recorded %+v", d, g)
	}
	if d.Tasks[0].Devices[0].Prefer != "" {
		t.Errorf("one GPU is preferred by several: %+v", d.Tasks)
	}
	s.Register(a)
	fill(s, a, 0, 2)
	s.Block(a, 3)
	if again := s.Submit(t, a); again.Outcome != view.Waits || len(s.AllAssumed()) > 1 {
		t.Errorf("submitted again: %+v, %+v", again, s.AllAssumed())
	}
}

// What a gang has too little room for is held, and says how much there is.
func TestAHeldGangSaysHowMuchRoomThereIs(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 2))
	for count, want := range map[int]string{2: "", 3: "its 3 allocs start together, and there is room for 2"} {
		a := gang(fmt.Sprint("gang-", count), count, 50)
		d, err := s.Decide(t.Context(), []admit.Ask{a}, true)
		if err != nil || (d[0].Hold != nil) != (want != "") || want != "" && *d[0].Hold != (admit.Hold{Kind: view.WaitsForRoom, Sentence: want}) || want != "" && (d[0].Outcome != view.Held || len(d[0].Preferred) > 0 || d[0].Explanation[0] != "waits for room: "+want) {
			t.Errorf("%d: %+v, %v", count, d, err)
		}
	}
	elastic := gang("elastic", 3, 50)
	elastic.GangMin = 2
	if d := s.Submit(t, elastic); d.Hold != nil || d.Outcome != view.Waits || len(s.AllAssumed()) != 2 {
		t.Errorf("two of three are enough: %+v", d)
	}
}

// A group of a gang for which there is room waits for the others, and says for which.
func TestAGroupWaitsForItsGang(t *testing.T) {
	s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 4))
	first, second, alone := gang("job", 1, 50), gang("job", 2, 50), servicetest.Ask("job", "1G", 1)
	second.Group, alone.Group, first.Tasks[0].Request = "h", "i", servicetest.Ask("x", "8G", 1).Tasks[0].Request
	alone.Count = 0
	second.Tasks[0].Request = first.Tasks[0].Request
	asks := []admit.Ask{first, alone, second}
	d, err := s.Decide(t.Context(), asks, false)
	if err != nil || d[0].Hold == nil || d[1].Hold != nil || d[2].Hold == nil {
		t.Fatalf("got %+v, %v", d, err)
	}
	if d[0].Hold.Kind != view.WaitsForQuota || d[0].Hold.Sentence != "it starts together with group h: "+d[2].Hold.Sentence || d[0].Preferred != nil || d[0].Outcome != view.Held {
		t.Errorf("the first: %+v", d[0])
	}
	if len(s.AllAssumed()) != 0 || len(s.Record(servicetest.KeyOf(first)).Groups["g"].Assumed) != 0 {
		t.Errorf("something is booked: %+v", s.AllAssumed())
	}
	if v := s.Record(servicetest.KeyOf(first)).Groups["g"].Shown; v.Outcome != view.Held || v.Choices != nil || v.Summary != "waits for quota: "+d[0].Hold.Sentence {
		t.Errorf("people see %+v", v)
	}
}

// A new leader learns from what is recorded: where large requests are what comes, a small one on
// an empty GPU takes more from them.
func TestDemandIsLearned(t *testing.T) {
	cost := func(jobs int, request string) int64 {
		s := servicetest.New(t, "", servicetest.Machine("a", 4))
		for i := range jobs {
			a := servicetest.Ask(fmt.Sprint("job-", i), request, 1)
			s.Submit(t, a)
			s.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(a)) })
		}
		next := servicetest.After(t, s, time.Second, "", servicetest.Machine("a", 4))
		s.State.View(func(r *state.Reader) {
			for _, key := range r.Queue.Recorded(state.Recorded) {
				known := r.Queue.Record(key).Clone()
				next.State.Do(func(tx *state.Tx) { tx.Keep(known) })
			}
		})
		next.State.Do(decide.Learn)
		probe := servicetest.Ask("probe", "4G", 1)
		next.Submit(t, probe)
		return recorded(next, probe).Shown.Choices[0].LostMilli
	}
	guess, small, large := cost(0, ""), cost(1, "4G"), cost(1, "4")
	if small >= guess || large <= guess {
		t.Errorf("4G costs %d of a guess, %d where all ask for as much and %d where all ask for four GPUs", guess, small, large)
	}
}

// Reservations: a claim is for whom it was made for, once, and for what fits in it.
func TestClaims(t *testing.T) {
	eight, _ := gpu.ParseRequest("8G")
	for name, row := range map[string]struct {
		namespace string
		claim     admit.Ask
		then      func(s *servicetest.Service, a admit.Ask) admit.Ask
		says      string
	}{
		"what fits":                  {namespace: "default", claim: servicetest.Ask("job", "8G", 1)},
		"the first of two":           {namespace: "default", claim: servicetest.Ask("job", "8G", 2)},
		"of another namespace":       {namespace: "other", claim: servicetest.Ask("job", "8G", 1), says: `it belongs to namespace "other"`},
		"more than it holds":         {namespace: "default", claim: servicetest.Ask("job", "16G", 1), says: `it does not hold what group "g" asks for`},
		"a second time, by another":  {namespace: "default", claim: servicetest.Ask("job", "8G", 1), then: func(_ *servicetest.Service, a admit.Ask) admit.Ask { a.JobID = "another"; return a }, says: "job default/job has claimed it"},
		"a second time, by the same": {namespace: "default", claim: servicetest.Ask("job", "8G", 1), then: func(_ *servicetest.Service, a admit.Ask) admit.Ask { return a }},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
			s.Tenant(t, "on-a", 50, "a", 0, 0, 8)
			hold, err := s.Reserve(t.Context(), reserve.Want{Namespace: row.namespace, Request: eight, For: time.Hour}, false)
			if err != nil || hold.NodeName != "a" {
				t.Fatalf("got %+v, %v", hold, err)
			}
			a := row.claim
			a.Reservation = hold.ID
			d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
			if row.then != nil {
				if err != nil {
					t.Fatal(err)
				}
				a = row.then(s, a)
				d, err = s.Decide(t.Context(), []admit.Ask{a}, false)
			}
			if row.says != "" {
				if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("reservation %q: %s", hold.ID, row.says)) {
					t.Errorf("got %+v, %v", d, err)
				}
				return
			}
			if err != nil || d[0].Preferred[0] != "id-a" {
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
}

// Of several reservations, what waits is told of the one that ends first and would do.
func TestWhatWaitsIsToldWhichReservationEndsFirst(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1), servicetest.Machine("c", 1))
	var ids []string
	for _, row := range []struct {
		request string
		minutes time.Duration
	}{{"16G", 30}, {"10G", 20}, {"16G", 25}, {"6G", 10}} { // two on b, which count until the last ends
		r, _ := gpu.ParseRequest(row.request)
		hold, err := s.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: r, For: row.minutes * time.Minute}, false)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, hold.ID)
	}
	d := s.Submit(t, servicetest.Ask("waits", "8G", 1))
	if d.Hold == nil || d.Hold.Kind != view.WaitsForRoom || d.Hold.Sentence != "the room on b is reserved until 2027-01-15T08:20:00Z" {
		t.Errorf("got %+v", d.Hold)
	}
	if err := s.Release(t.Context(), ids[2]); err != nil {
		t.Fatal(err)
	}
	if d := s.Submit(t, servicetest.Ask("waits", "8G", 1)); d.Hold != nil || d.Preferred[0] != "id-c" {
		t.Errorf("got %+v", d)
	}
}
