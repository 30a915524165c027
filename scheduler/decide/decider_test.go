package decide

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
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
)

func TestAnUnchangedAskComesOutAsBefore(t *testing.T) {
	b := newBench(t, "", machine("a", 2), machine("b", 2))
	a := ask("job", "0.5", 1)
	first := b.decide(t, a)
	b.register(a)
	b.run(a, "alloc-1", "a", 0, 0, 8)
	// The cluster changes, and another node would be better now.
	other := ask("other", "1", 1)
	b.decide(t, other)
	if second := b.decide(t, a); !reflect.DeepEqual(first, second) {
		t.Errorf("first %+v\nthen  %+v", first, second)
	}
	a.Count = 3
	third := b.decide(t, a)
	if !reflect.DeepEqual(first.Tasks, third.Tasks) {
		t.Errorf("a larger count changed the device blocks:\nfirst %+v\nthen  %+v", first.Tasks, third.Tasks)
	}
	a.Tasks[0].Request.Milli = 250
	if fourth := b.decide(t, a); fourth.Tasks[0].Devices[0].Count != 4 {
		t.Errorf("another request gave %+v", fourth.Tasks[0].Devices)
	}
}

func TestOnlyALeaderWithAViewDecides(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	asks := []admit.Ask{ask("job", "8G", 1)}
	b.leading = func() bool { return false }
	if _, err := b.Decide(t.Context(), asks, false); !errors.Is(err, ErrNotLeading) {
		t.Errorf("got %v", err)
	}
	if _, err := b.Decide(t.Context(), asks, true); err != nil {
		t.Errorf("a dry run needs no leader: %v", err)
	}
	b.clock.at = b.clock.at.Add(tooOld + time.Second)
	if _, err := b.Decide(t.Context(), asks, true); !errors.Is(err, ErrBlind) {
		t.Errorf("got %v", err)
	}
}

func TestDryRunLeavesNoTrace(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	if _, err := b.Decide(t.Context(), []admit.Ask{ask("job", "8G", 1)}, true); err != nil {
		t.Fatal(err)
	}
	if len(b.book.flights) != 0 || len(b.store.items) != 0 || len(b.book.snap.UsagesOn("id-a")) != 0 {
		t.Errorf("%d flights, %d variables", len(b.book.flights), len(b.store.items))
	}
}

func TestARefusedJobIsTakenBack(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	a := ask("job", "8G", 1)
	before := b.decide(t, a)
	b.register(a)
	b.run(a, "alloc-1", "a", 0, 0, 8)
	changed := ask("job", "4G", 1)
	d, err := b.Decide(t.Context(), []admit.Ask{changed}, false)
	if err != nil {
		t.Fatal(err)
	}
	b.Settle(t.Context(), []admit.Ask{changed}, d, false)
	if after := b.decide(t, a); !reflect.DeepEqual(before, after) {
		t.Errorf("before %+v\nafter  %+v", before, after)
	}
}

// conflicting is a store in which somebody else is always faster.
type conflicting struct{ *memory }

func (c conflicting) Put(context.Context, nomad.Item) (uint64, error) {
	return 0, fmt.Errorf("put: %w", nomad.ErrConflict)
}

func TestALostRaceIsRefusedAndForgotten(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	b.Decider.store = conflicting{b.store}
	_, err := b.Decide(t.Context(), []admit.Ask{ask("job", "8G", 1)}, false)
	var refusal *admit.Refusal
	if !errors.As(err, &refusal) || refusal.Status != 409 || len(b.book.flights) != 0 {
		t.Errorf("%v, %d flights", err, len(b.book.flights))
	}
}

func TestANewLeaderKnowsWhatTheOldOnePromised(t *testing.T) {
	old := newBench(t, "", machine("a", 1))
	a := ask("job", "10G", 1)
	old.decide(t, a)
	r, _ := gpu.ParseRequest("4G")
	if _, err := old.Reserve(t.Context(), reserve.Want{Namespace: "default", Request: r, For: time.Minute}, false); err != nil {
		t.Fatal(err)
	}
	next := newBench(t, "", machine("a", 1))
	next.store = old.store
	next.Decider.store = old.store
	next.clock.at = old.clock.at.Add(time.Second)
	next.book.Heard()
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := next.decide(t, ask("other", "4G", 1)); len(d.Preferred) != 0 {
		t.Errorf("promised room was given away: %+v", d)
	}
	if d := next.decide(t, ask("small", "2G", 1)); len(d.Preferred) != 1 {
		t.Errorf("free room was not given: %+v", d)
	}
}

// Regression: for two minutes a new leader kept the room of jobs that had been
// stopped a moment before.
func TestANewLeaderPromisesNothingToStoppedJobs(t *testing.T) {
	old := newBench(t, "", machine("a", 1))
	a := ask("job", "16G", 1)
	old.decide(t, a)
	next := newBench(t, "", machine("a", 1))
	next.store, next.Decider.store = old.store, old.store
	next.register(a)
	next.book.jobs[nomad.JobKey{Namespace: "default", ID: "job"}].Stopped = true
	if err := next.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := next.decide(t, ask("next", "16G", 1)); len(d.Preferred) != 1 {
		t.Errorf("the room is gone: %+v", d)
	}
}

// A changed request replaces what runs, so it is placed as if that were gone;
// until it is gone, nobody else gets the room.
func TestAChangedRequestMayUseItsOwnRoom(t *testing.T) {
	b := newBench(t, "", machine("a", 1))
	a := ask("job", "10G", 1)
	b.decide(t, a)
	b.register(a)
	b.run(a, "alloc", "a", 0, 0, 10)
	if d := b.decide(t, ask("job", "12G", 1)); !slices.Equal(d.Preferred, []string{"id-a"}) {
		t.Errorf("preferred %v", d.Preferred)
	}
	if d := b.decide(t, ask("other", "3G", 1)); len(d.Preferred) != 0 {
		t.Errorf("room of both the old and the new alloc was given away: %+v", d)
	}
	b.end("alloc")
	if d := b.decide(t, ask("other", "3G", 1)); len(d.Preferred) != 1 {
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
		b := newBench(t, "", machine("a", 1), machine("b", 1))
		a := ask("job", "4G", 1)
		change(&a)
		d := b.decide(t, a)
		device := d.Tasks[0].Devices[0]
		if device.Count != 4 || device.Prefer != "" || len(d.Preferred) != 0 || d.Hold != nil || len(b.book.flights) != 0 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
