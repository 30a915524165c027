// SPDX-License-Identifier: MPL-2.0

package turns

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Patience is how long work waits until what comes later with the same priority leaves
// it the room that it waits for: before that, whoever fits goes first.
const Patience = time.Minute

// MostKept bounds how many nodes are kept at once.
const MostKept = 32

// early and late are the chances with which work ends no sooner, and no later, than is
// reckoned with where other work depends on it.
const early, late = 0.05, 0.95

// GoesFirst reports whether work that waits goes before other work at a moment: before
// whatever has a lower priority, and, once it has waited for some time, before what
// comes later with the same.
func GoesFirst(o *quota.Order, now time.Time, waits, other quota.Turn) bool {
	patient := waits.Priority == other.Priority && now.Sub(waits.Since) >= Patience && o.Compare(waits, other) < 0
	return waits.Priority > other.Priority || patient
}

// Ending is work that is in the way of other work, and when it may be gone.
type Ending struct {
	ID string
	At time.Duration // from now
}

// MayBeGone is when work may be gone at the earliest: at any moment, where nothing is known.
func MayBeGone(left forecast.Remaining) time.Duration {
	if !left.Known() {
		return 0
	}
	return left.At(early)
}

// Soonest is when work could start if all that is in its way ended early; fits says
// whether it could with some of that gone.
func Soonest(ends []Ending, fits func(gone map[string]bool) bool) time.Duration {
	slices.SortFunc(ends, func(a, b Ending) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.ID, b.ID)) })
	gone, start := map[string]bool{}, time.Duration(0)
	for _, e := range ends {
		if fits(gone) {
			break
		}
		gone[e.ID], start = true, e.At
	}
	return start
}

// EndsBefore reports whether work that runs for so long will have ended by a time from now, so
// that it may use room that is kept for other work until then.
func EndsBefore(runs forecast.Remaining, by time.Duration) bool {
	return runs.Known() && runs.At(late) <= by
}
