// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// Assume books the room of a promised alloc.
func (tx *Tx) Assume(key nomad.JobKey, group string, u place.Usage, kept bool) {
	tx.assume(key, group, u, kept, tx.Now())
}

func (tx *Tx) assume(key nomad.JobKey, group string, u place.Usage, kept bool, since time.Time) {
	u.ID, u.Pinned = tx.Capacity.promises.freeID(key, group), true
	if j := tx.Cluster.Job(key); j != nil {
		u.Ends = j.Type == "batch"
	}
	tx.bookAssumed(&Assumed{Job: key, Group: group, Usage: u, Since: since, Kept: kept})
}

// AssumeRest books again the missing promises to a group: where some of it runs
// by now, that is left out on the nodes on which it runs.
func (tx *Tx) AssumeRest(key nomad.JobKey, group string, promised []place.Usage, missing int) {
	came := len(promised) - missing
	runs := tx.Cluster.allocs.runsOn(key, group)
	for _, u := range promised {
		switch {
		case came > 0 && runs[u.NodeID] > 0:
			came--
			runs[u.NodeID]--
		case missing > 0:
			missing--
			tx.Assume(key, group, u, false)
		}
	}
}

func (tx *Tx) bookAssumed(a *Assumed) {
	tx.Capacity.promises.put(a)
	tx.book(a.Usage)
}

func (tx *Tx) forget(id string) {
	tx.Capacity.promises.remove(id)
	tx.unbook(id)
}

// Forget ends the promises to a job, or to some groups of it.
func (tx *Tx) Forget(key nomad.JobKey, groups ...string) {
	for id := range tx.Capacity.promises.ids(key, func(a *Assumed) bool { return len(groups) == 0 || slices.Contains(groups, a.Group) }) {
		tx.forget(id)
	}
}

// Savepoint remembers the promises to a job, and its claim on a reservation.
// The result brings both back: a promise does not last longer for it, and one that is as it
// was keeps its place among the work of its queue.
func (tx *Tx) Savepoint(key nomad.JobKey) (rollback func()) {
	before := tx.Capacity.promises.copyOf(key)
	claimed := tx.Capacity.reservations.claimedBy(key) != nil
	return func() {
		for id := range tx.Capacity.promises.ids(key, func(a *Assumed) bool { return before[a.Usage.ID] != a }) {
			tx.forget(id)
		}
		for _, a := range slices.SortedFunc(maps.Values(before), oldestFirst) {
			if tx.Capacity.promise(a.Usage.ID) != a {
				tx.bookAssumed(a)
			}
		}
		if !claimed {
			tx.Unclaim(key)
		}
	}
}

// Expire adds the present holdings of queues to their past use, and ends promises that will no
// longer be kept, and reservations whose time is up. It returns the latter. Room that is made for a job is its own until the last that
// goes for it has ended.
func (tx *Tx) Expire() []*record.Reservation {
	now := tx.Now()
	tx.account()
	tx.forgetEvictions()
	tx.Cluster.wanted.forget(now)
	if tx.Queue.returns.forgetLate() {
		tx.Capacity.books.epoch++
		tx.version++
	}
	for id := range tx.Capacity.promises.late(now, tx.Cluster.jobs.hasJob, tx.Capacity.promises.makingRoom(tx.Cluster.allocs.beganToEnd())) {
		tx.forget(id)
		tx.version++
	}
	over := tx.Capacity.reservations.over()
	for _, r := range over {
		tx.Release(r.ID)
	}
	return over
}
