// SPDX-License-Identifier: MPL-2.0

package state

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What was done to work counts for an hour, and evictions for a job of the same queue do not keep
// it from other queues.
func TestBudgets(t *testing.T) {
	ago := func(minutes ...time.Duration) (times []time.Time) {
		for _, m := range minutes {
			times = append(times, noon.Add(-m*time.Minute))
		}
		return times
	}
	for name, row := range map[string]struct {
		evicted, own []time.Time
		other, same  bool // whether there is a budget left for another queue, for the same
	}{
		"never":                   {nil, nil, true, true},
		"as often as it bears":    {ago(1, 2), nil, false, false},
		"one is an hour ago":      {ago(60, 2), nil, true, true},
		"one is almost":           {ago(59, 2), nil, false, false},
		"one is dated ahead":      {ago(-1, 2), nil, false, false},
		"one is an hour ahead":    {ago(-60, 2), nil, true, true},
		"one for the same queue":  {ago(1, 2), ago(1), true, false},
		"that one is an hour ago": {ago(60, 1, 2), ago(60), false, false},
	} {
		r := emptyReader()
		r.settings.config.Preemption.MaxPerJob = 2
		r.Capacity.disruptions.recall(&record.History{Evicted: map[string][]time.Time{oneJob.String(): row.evicted}, EvictedOwn: map[string][]time.Time{oneJob.String(): row.own}})
		r.Capacity.disruptions.expire()
		a := &nomad.Alloc{Namespace: oneJob.Namespace, Job: oneJob.ID}
		if other, same := r.Capacity.BudgetLeft(a, false), r.Capacity.BudgetLeft(a, true); other != row.other || same != row.same {
			t.Errorf("%s: a budget is left for another queue: %v, for the same: %v", name, other, same)
		}
	}
}

// A leader goes on with what the one before it did.
func TestDisruptionsAreHandedOver(t *testing.T) {
	first, next := emptyReader().Capacity.disruptions, emptyReader().Capacity.disruptions
	for _, e := range []view.Event{
		{At: noon, Kind: "move", Namespace: oneJob.Namespace, JobID: oneJob.ID},
		{At: noon, Kind: "idle", Namespace: oneJob.Namespace, JobID: oneJob.ID},
		{At: noon, Kind: "move", Namespace: oneJob.Namespace, JobID: "tried", DryRun: true},
	} {
		first.noteMoveOrIdle(&e)
	}
	first.noteEviction(&view.Event{At: noon, Kind: "evict", Namespace: oneJob.Namespace, JobID: oneJob.ID, AllocID: "unknown"})
	stored := &record.History{}
	first.store(stored)
	next.recall(stored)
	tried := nomad.JobKey{Namespace: oneJob.Namespace, ID: "tried"}
	if !next.Moved(oneJob) || !next.WasIdle(oneJob) || next.Moved(tried) || next.evicted.Left(oneJob, 1, false) || !next.evicted.Left(oneJob, 2, false) {
		t.Errorf("handed over as %+v", next)
	}
}
