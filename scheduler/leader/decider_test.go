// SPDX-License-Identifier: MPL-2.0

package leader_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

func TestAnUnchangedAskComesOutAsBefore(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 2), servicetest.Machine("b", 2))
	a := servicetest.Ask("job", "0.5", 1)
	first := b.Submit(t, a)
	b.Register(a)
	b.Run(a, "alloc-1", "a", 0, 0, 8)
	// The cluster changes, and another node would be better now.
	other := servicetest.Ask("other", "1", 1)
	b.Submit(t, other)
	if second := b.Submit(t, a); !reflect.DeepEqual(first, second) {
		t.Errorf("first %+v\nthen  %+v", first, second)
	}
	a.Count = 3
	third := b.Submit(t, a)
	if !reflect.DeepEqual(first.Tasks, third.Tasks) {
		t.Errorf("a larger count changed the device blocks:\nfirst %+v\nthen  %+v", first.Tasks, third.Tasks)
	}
	a.Tasks[0].Request.Milli = 250
	if fourth := b.Submit(t, a); fourth.Tasks[0].Devices[0].Count != 4 {
		t.Errorf("another request gave %+v", fourth.Tasks[0].Devices)
	}
}

func TestOnlyALeaderWithAViewDecides(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	asks := []admit.Ask{servicetest.Ask("job", "8G", 1)}
	follower := leader.New(b.State, b.Store, func() bool { return false })
	if _, err := follower.Decide(t.Context(), asks, false); !errors.Is(err, leader.ErrNotLeading) {
		t.Errorf("got %v", err)
	}
	if _, err := follower.Decide(t.Context(), asks, true); err != nil {
		t.Errorf("a dry run needs no leader: %v", err)
	}
	b.Clock.At = b.Clock.At.Add(time.Minute + time.Second)
	if _, err := b.Decide(t.Context(), asks, true); !errors.Is(err, state.ErrBlind) {
		t.Errorf("got %v", err)
	}
}

func TestDryRunLeavesNoTrace(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	if _, err := b.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", "8G", 1)}, true); err != nil {
		t.Fatal(err)
	}
	if len(b.AllAssumed()) != 0 || len(b.Store.Items) != 0 || b.Cluster(t).Nodes[0].CPUUsedMHz != 0 {
		t.Errorf("%d assumed, %d variables", len(b.AllAssumed()), len(b.Store.Items))
	}
}

func TestARefusedJobIsTakenBack(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "8G", 1)
	before := b.Submit(t, a)
	b.Register(a)
	b.Run(a, "alloc-1", "a", 0, 0, 8)
	changed := servicetest.Ask("job", "4G", 1)
	d, err := b.Decide(t.Context(), []admit.Ask{changed}, false)
	if err != nil {
		t.Fatal(err)
	}
	b.Settle(t.Context(), []admit.Ask{changed}, d, false)
	if after := b.Submit(t, a); !reflect.DeepEqual(before, after) {
		t.Errorf("before %+v\nafter  %+v", before, after)
	}
}

// conflicting is a store in which another writer is always faster.
type conflicting struct{ *nomadtest.Store }

func (c conflicting) Put(context.Context, nomad.Item) (uint64, error) {
	return 0, fmt.Errorf("put: %w", nomad.ErrConflict)
}

func TestALostRaceIsRefusedAndForgotten(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	b.UseStore(conflicting{b.Store})
	_, err := b.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", "8G", 1)}, false)
	var refusal *admit.Refusal
	if !errors.As(err, &refusal) || refusal.Status != 409 || len(b.AllAssumed()) != 0 {
		t.Errorf("%v, %d assumed", err, len(b.AllAssumed()))
	}
}

func TestANewLeaderKnowsWhatTheOldOnePromised(t *testing.T) {
	old := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "10G", 1)
	old.Submit(t, a)
	r, _ := gpu.ParseRequest("4G")
	if _, err := old.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: r, For: time.Minute}, false); err != nil {
		t.Fatal(err)
	}
	next := servicetest.After(t, old, time.Second, "", servicetest.Machine("a", 1))
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := next.Submit(t, servicetest.Ask("other", "4G", 1)); len(d.Preferred) != 0 {
		t.Errorf("promised room was given away: %+v", d)
	}
	if d := next.Submit(t, servicetest.Ask("small", "2G", 1)); len(d.Preferred) != 1 {
		t.Errorf("free room was not given: %+v", d)
	}
}

// Regression: for two minutes a new leader kept the room of jobs that had been
// stopped a moment before.
func TestANewLeaderPromisesNothingToStoppedJobs(t *testing.T) {
	old := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "16G", 1)
	old.Submit(t, a)
	next := servicetest.After(t, old, 0, "", servicetest.Machine("a", 1))
	next.Register(a)
	j := next.Job(servicetest.KeyOf(a))
	j.Stopped = true
	next.State.Apply([]nomad.Change{{Job: &j}}, next.Index)
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := next.Submit(t, servicetest.Ask("next", "16G", 1)); len(d.Preferred) != 1 {
		t.Errorf("the room is gone: %+v", d)
	}
}

// A changed request replaces what runs, so it is placed as if that were gone;
// until it is gone, no other job gets the room.
func TestAChangedRequestMayUseItsOwnRoom(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "10G", 1)
	b.Submit(t, a)
	b.Register(a)
	b.Run(a, "alloc", "a", 0, 0, 10)
	if d := b.Submit(t, servicetest.Ask("job", "12G", 1)); !slices.Equal(d.Preferred, []string{"id-a"}) {
		t.Errorf("preferred %v", d.Preferred)
	}
	if d := b.Submit(t, servicetest.Ask("other", "3G", 1)); len(d.Preferred) != 0 {
		t.Errorf("room of both the old and the new alloc was given away: %+v", d)
	}
	b.End("alloc")
	if d := b.Submit(t, servicetest.Ask("other", "3G", 1)); len(d.Preferred) != 1 {
		t.Errorf("the old alloc's room is not free: %+v", d)
	}
}

// Work that Nomad starts later, or on every node, gets its device blocks and
// nothing that belongs to one placement.
func TestWorkWithoutAPlaceOfItsOwn(t *testing.T) {
	for name, change := range map[string]func(*admit.Ask){
		"system":   func(a *admit.Ask) { a.JobType = "system" },
		"sysbatch": func(a *admit.Ask) { a.JobType = "sysbatch" },
		"periodic": func(a *admit.Ask) { a.JobType, a.Later = "batch", true },
	} {
		b := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
		a := servicetest.Ask("job", "4G", 1)
		change(&a)
		d := b.Submit(t, a)
		device := d.Tasks[0].Devices[0]
		if device.Count != 4 || device.Prefer != "" || len(d.Preferred) != 0 || d.Hold != nil || len(b.AllAssumed()) != 0 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// What Nomad took is shown to people, and known to have reached it.
func TestWhatNomadTookIsShown(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := servicetest.Ask("job", "8G", 1)
	d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
	if err != nil {
		t.Fatal(err)
	}
	if shown := s.Cluster(t).Decisions; len(shown) != 0 || !s.Record(servicetest.KeyOf(a)).Settled.IsZero() {
		t.Errorf("before Nomad has it: %+v", shown)
	}
	s.Settle(t.Context(), []admit.Ask{a}, d, true)
	if shown := s.Cluster(t).Decisions; len(shown) != 1 || shown[0].JobID != "job" || !s.Record(servicetest.KeyOf(a)).Settled.Equal(s.Clock.At) {
		t.Errorf("then: %+v", shown)
	}
}

// A policy that is changed goes on with what the cluster was asked for.
func TestAnotherPolicyKnowsWhatWasAskedFor(t *testing.T) {
	cost := func(learned bool) int64 {
		s := servicetest.New(t, "", servicetest.Machine("a", 4))
		large := servicetest.Ask("large", "4", 1)
		if learned {
			s.Submit(t, large)
			s.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(large)) })
		}
		c, err := config.Parse("test.hcl", []byte("placement {\n policy = \"PACK\"\n}\n"))
		if err != nil {
			t.Fatal(err)
		}
		s.Configure(c)
		probe := servicetest.Ask("probe", "4G", 1)
		s.Submit(t, probe)
		return s.Record(servicetest.KeyOf(probe)).Groups["g"].Shown.Choices[0].LostMilli
	}
	if guess, learned := cost(false), cost(true); learned <= guess {
		t.Errorf("4G costs %d where nothing is known and %d where all asked for four GPUs", guess, learned)
	}
}
