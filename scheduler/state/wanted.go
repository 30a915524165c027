// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// wanted is since when groups have waited, also for a moment after they stopped: a job that the
// service lets go does not wait in Nomad until it is evaluated again, and whether an alloc or
// the end of its wait is heard of first is up to Nomad.
type wanted map[groupKey]wait

type groupKey struct {
	nomad.JobKey
	group string
}

type wait struct{ since, left time.Time } // left is zero while it goes on

// begin takes what Nomad cannot place of a job.
func (w wanted) begin(b *nomad.Blocked, now time.Time) {
	for group := range b.Missing {
		key := groupKey{b.Key, group}
		known, found := w[key]
		if !found || !known.left.IsZero() && now.Sub(known.left) > Unplaced || b.Since.Before(known.since) {
			known.since = b.Since
		}
		w[key] = wait{since: known.since}
	}
}

// end notes that a job waits no more.
func (w wanted) end(b *nomad.Blocked, now time.Time) {
	for group := range b.Missing {
		key := groupKey{b.Key, group}
		if one, found := w[key]; found && one.left.IsZero() {
			w[key] = wait{one.since, now}
		}
	}
}

// forget drops what ended longer ago than an alloc takes to be heard of.
func (w wanted) forget(now time.Time) {
	maps.DeleteFunc(w, func(_ groupKey, one wait) bool { return !one.left.IsZero() && now.Sub(one.left) > 2*Unplaced })
}

// WantedSince is since when the group of an alloc that has come lately had waited for it: its
// creation where it did not, or where that is not known.
func (w wanted) WantedSince(a *nomad.Alloc) time.Time {
	one, found := w[groupKey{a.Key(), a.Group}]
	if !found || one.since.After(a.Created) || !one.left.IsZero() && a.Created.Sub(one.left) > Unplaced {
		return a.Created
	}
	return one.since
}
