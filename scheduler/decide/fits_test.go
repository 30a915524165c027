// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// fits are what would start now in place of what waits, by job.
func fits(t *testing.T, s *servicetest.Service) map[string]*view.Fits {
	t.Helper()
	var f *decide.Fitting
	s.State.Do(func(tx *state.Tx) { f = decide.NewFitting(tx) })
	for more := true; more; {
		s.State.Do(func(tx *state.Tx) { more = f.Next(tx) })
	}
	s.State.Do(func(tx *state.Tx) { tx.NoteFits(f.Found()) })
	found := map[string]*view.Fits{}
	for _, p := range s.Cluster(t).Pending {
		found[p.JobID] = p.Fits
	}
	return found
}

// waits has a job wait of which nothing runs.
func waits(t *testing.T, s *servicetest.Service, a admit.Ask) {
	t.Helper()
	s.Submit(t, a)
	s.Register(a)
	s.Block(a, a.Count)
}

// blocks is a job with a device block.
func blocks(name, device string, count int64) admit.Ask {
	a := servicetest.Ask(name, "1", 1)
	a.Tasks[0] = admit.TaskAsk{Task: "t", Driver: "docker", Devices: []admit.DeviceAsk{{Name: device, Count: count}}}
	return a
}

// Machine a has 6 GiB free on one GPU and 3 GiB on the other, b three whole GPUs.
func TestWhatWaitsIsToldWhatWouldFit(t *testing.T) {
	gang := servicetest.Ask("gang", "12G", 6)
	gang.Gang = true
	apart := servicetest.Ask("apart", "2", 2)
	apart.Distinct, apart.Gang = admit.DistinctInGroup, true
	for name, c := range map[string]struct {
		ask  admit.Ask
		want string
	}{
		"gang":   {gang, "6 allocs of 8G each would start now, on 1 node"},
		"apart":  {apart, "2 allocs of 0.375 each would start now, on 2 nodes"},
		"count":  {servicetest.Ask("j", "4", 1), "3 would start now on 1 node"},
		"allocs": {servicetest.Ask("j", "4", 4), "4 allocs of 0.5 each would start now, on 1 node"},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 2), servicetest.Machine("b", 4))
			for i, slices := range []int{10, 13} {
				s.Tenant(t, fmt.Sprint("a", i), 50, "a", i, 0, slices)
			}
			s.Tenant(t, "b", 50, "b", 3, 0, 16)
			waits(t, s, c.ask)
			got := fits(t, s)[c.ask.JobID]
			if got == nil || got.Text() != c.want {
				t.Errorf("%+v, want %q", got, c.want)
			}
			if row := s.Cluster(t).Pending[0]; row.Fits == nil || *row.Fits != *got {
				t.Errorf("people see %+v", row)
			}
		})
	}
}

// What is less comes in the unit of the request, and keeps its proportions.
func TestWhatWouldFitIsInTheWordsOfTheRequest(t *testing.T) {
	for request, want := range map[string]string{
		"12G": "6G would start now on 1 node", "8G,0.9": "3G,0.337 would start now on 1 node", "0.9(nvidia,T4)": "0.375(nvidia,T4) would start now on 1 node",
		"1": "0.375 would start now on 1 node", "2": "0.375 would start now on 1 node", "7000M": "6G would start now on 1 node",
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 2))
		s.Tenant(t, "one", 50, "a", 0, 0, 10)
		s.Tenant(t, "two", 50, "a", 1, 0, 13)
		waits(t, s, servicetest.Ask("j", request, 1))
		if got := fits(t, s)["j"]; got == nil || got.Text() != want {
			t.Errorf("%s: %+v, want %q", request, got, want)
		}
	}
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	s.Tenant(t, "all", 50, "a", 0, 0, 10)
	waits(t, s, blocks("j", "nvidia/slice", 9))
	if got := fits(t, s)["j"]; got == nil || got.Text() != "6 x nvidia/slice would start now on 1 node" {
		t.Errorf("a device block: %+v", got)
	}
	full := servicetest.New(t, "", servicetest.Machine("a", 1))
	full.Tenant(t, "all", 50, "a", 0, 0, 16)
	waits(t, full, servicetest.Ask("j", "4G", 1))
	if got := fits(t, full)["j"]; got == nil || got.Text() != "nothing smaller would start now" {
		t.Errorf("in a full cluster: %+v", got)
	}
}

// What would fit is within the quota, leaves the room that is kept for others, and is not
// said of what runs in part.
func TestWhatWouldFitKeepsTheRules(t *testing.T) {
	s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 4))
	s.Tenant(t, "half", 50, "a", 0, 0, 10)
	waits(t, s, servicetest.Ask("j", "12G", 1))
	if got := fits(t, s)["j"]; got == nil || got.Ask != "6G" || got.Nodes != 1 {
		t.Errorf("beside a queue's limit: %+v", got)
	}
	s = servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2))
	s.Tenant(t, "one", 50, "a", 0, 0, 8)
	first := servicetest.Ask("first", "2", 1)
	first.Priority = 70
	waits(t, s, first)
	waits(t, s, servicetest.Ask("j", "2", 1))
	if got := fits(t, s); got["first"] == nil || got["first"].Ask != "1" || got["j"] == nil || got["j"].Ask != "" {
		t.Errorf("one GPU is free, and kept for the first: %+v, %+v", got["first"], got["j"])
	}
	s = servicetest.New(t, "", servicetest.Machine("a", 1))
	part := servicetest.Ask("part", "12G", 2)
	s.Submit(t, part)
	s.Register(part)
	s.Run(part, "alloc-part", "a", 0, 0, 12)
	s.Block(part, 1)
	if got := fits(t, s)["part"]; got != nil {
		t.Errorf("of what runs in part: %+v", got)
	}
}

// A refusal says it as well, in its last line, and so does a plan.
func TestRefusalsAndPlansSayWhatWouldFit(t *testing.T) {
	s := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2), servicetest.Machine("b", 2))
	s.Tenant(t, "some", 50, "a", 0, 0, 4)
	for request, want := range map[string]string{"40G": "12G would start now on 2 nodes", "4": "0.75 would start now on 2 nodes", "2": "0.75 would start now on 2 nodes"} {
		_, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("j", request, 1)}, false)
		var refusal *admit.Refusal
		if !errors.As(err, &refusal) || len(refusal.Details) == 0 || refusal.Details[len(refusal.Details)-1] != want {
			t.Errorf("%s: %v, want %q", request, err, want)
		}
	}
	d, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("j", "16G", 1)}, true)
	if err != nil || d[0].Hold == nil || !strings.Contains(strings.Join(d[0].Explanation, "\n"), "\n12G would start now on 2 nodes") {
		t.Errorf("a plan: %+v, %v", d, err)
	}
}

// What is said to start is placed when it is asked for, whatever the cluster is like.
func TestWhatWouldFitIsTrue(t *testing.T) {
	requests := []string{"16G", "1", "3", "0.8", "10G,0.9", "12G(T4)", "6G"}
	said := 0
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		s := servicetest.New(t, "queue \"q\" {\n gpus = 5\n namespaces = [\"default\"]\n borrow = false\n}", servicetest.Machine("a", 2), servicetest.Machine("b", 3))
		for i, machine := range []string{"a", "a", "b", "b", "b"} {
			if slices := rng.IntN(17); slices > 0 {
				s.Tenant(t, fmt.Sprint("t", i), 50, machine, []int{0, 1, 0, 1, 2}[i], 0, slices)
			}
		}
		for i := range 4 {
			a := servicetest.Ask(fmt.Sprint("w", i), requests[rng.IntN(len(requests))], 1+rng.IntN(2))
			a.Priority = 40 + 10*rng.IntN(3)
			if d, err := s.Decide(t.Context(), []admit.Ask{a}, true); err != nil || d[0].Outcome == view.Placed {
				continue
			}
			waits(t, s, a)
		}
		s.LetTimePass()
		for job, f := range fits(t, s) {
			if f == nil || f.Ask == "" {
				continue
			}
			said++
			a := s.Record(servicetest.KeyOf(servicetest.Ask(job, "1", 1))).Groups["g"].Ask
			a.Tasks[0].Request = servicetest.Ask("x", f.Ask, 1).Tasks[0].Request
			d, err := s.Decide(t.Context(), []admit.Ask{a}, true)
			if err != nil || d[0].Outcome != view.Placed {
				t.Errorf("seed %d: %s of job %s would start, it was said, and %+v, %v", seed, f.Ask, job, d, err)
			}
		}
	}
	if said < 20 {
		t.Errorf("only %d answers", said)
	}
}

// A record without device blocks, as one that was written by hand, asks for none.
func TestARecordWithoutBlocksAsksForNone(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	s.Tenant(t, "tenant", 50, "a", 0, 0, 16)
	a := s.Waits(t, "waits", "8G", 50)
	s.State.Do(func(tx *state.Tx) {
		g := tx.Queue.Record(servicetest.KeyOf(a)).Groups["g"]
		g.Decision.Hold = nil
		if !decide.GoesBack(tx, servicetest.KeyOf(a), &g) {
			t.Error("there is room for it")
		}
		if g.Decision.Tasks = nil; decide.GoesBack(tx, servicetest.KeyOf(a), &g) {
			t.Error("without blocks there is none")
		}
	})
}
