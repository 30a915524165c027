// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What runs of a group whose request changed is replaced. Where its update block has no
// canaries, each alloc goes in the plan that starts the new one, so that its share is free
// for that. Canaries run beside what runs until they are promoted, so that the queue pays for
// both; and where more allocs are missing of the group than it has canaries, for those, which
// start when the canaries are promoted, or at once if Nomad finds nothing to replace: not every
// change tells. A group that has to wait before it is replaced runs on as it was.

// start is what Nomad is to start of a group.
type start struct {
	allocs  int
	running int          // what runs of the group and goes on; these are missing beside it
	beside  place.Charge // of what runs until it is replaced, where these are canaries
}

// besideRunning is how many allocs Nomad starts beside what runs of a group before it replaces
// any of that; 0 where it has no canaries, and is replaced at once.
func besideRunning(tx *state.Tx, key nomad.JobKey, a *admit.Ask) int {
	running := tx.Cluster.Live(key, a.Group)
	if a.JobType != "service" || running == 0 || a.Canaries == 0 {
		return 0
	}
	return max(a.Canaries, a.Count-running)
}

// runningCharge is what a group's allocs cost its queue that canaries run beside.
func runningCharge(tx *state.Tx, key nomad.JobKey, group string) place.Charge {
	var sum place.Charge
	for _, a := range tx.Cluster.AllocsOf(key) {
		if u, booked := tx.Capacity.Usage(a.ID); booked && a.Group == group && !a.Canary && !a.Stopping {
			sum = sum.Plus(tx.Capacity.Charge(u.NodeID, u.Takes))
		}
	}
	return sum
}

// setAside takes a group's running allocs off the books: a changed request
// replaces all of them, so their share is free for it. An alloc that stops already is
// not replaced: it holds its GPUs, and its queue pays for it, until it has ended.
// The result puts them back, for as long as they run.
func setAside(tx *state.Tx, key nomad.JobKey, group string) func() {
	return tx.Without(func(yield func(*nomad.Alloc) bool) {
		for _, a := range tx.Cluster.AllocsOf(key) {
			if a.Group == group && !a.Stopping && !yield(a) {
				return
			}
		}
	})
}

// besideEnding is the hold of a group that runs while an earlier version of it has not ended,
// and whose queue could not pay for a third beside that; nil where it need not wait. Not every
// change tells whether Nomad replaces what runs, so any may: else each of many updates would
// leave another version that stops.
func besideEnding(a groupAsk, was *record.Group) *admit.Hold {
	ends := func(alloc *nomad.Alloc) bool {
		return alloc.Group == a.ask.Group && alloc.Stopping && len(alloc.Devices) > 0
	}
	if a.queue == nil || was.Decision.Hold != nil || a.tx.Cluster.Live(a.key, a.ask.Group) == 0 || !slices.ContainsFunc(a.tx.Cluster.AllocsOf(a.key), ends) {
		return nil
	}
	defer setAside(a.tx, a.key, a.ask.Group)()
	why := a.tx.Queue.OverQuota(a.queue.Name, leastCost(a.tx, a.parts).Times(int64(a.ask.Count)))
	if why == "" {
		return nil
	}
	return &admit.Hold{Kind: view.WaitsForQuota, Sentence: why + ", beside what is replaced and has not ended"}
}
