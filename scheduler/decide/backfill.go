// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/turns"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// endsBefore reports whether an alloc of a group will have ended before a waiting group
// could start on the node that is kept for it, by what authors say and what others like
// them did: then it may use that room meanwhile.
func endsBefore(a groupAsk, u *blocks.Placed, w *waiter) bool {
	if a.ask.JobType != "batch" {
		return false
	}
	runs := a.tx.RunTime(a.key, a.ask.Group, a.ask.TimeLimit, u.Usage.Takes)
	return turns.EndsBefore(runs, w.soonest(a.tx))
}

// soonest is when a group could start on the node that is kept for it, if all that is in
// its way ended early. Work that is not known to end may be gone at any moment.
func (w *waiter) soonest(tx *state.Tx) time.Duration {
	if w.start != nil {
		return *w.start
	}
	var ends []turns.Ending
	goes := w.leaves(tx)
	for _, u := range tx.UsagesOn(w.node) {
		if !goes(&u) {
			continue
		}
		one := turns.Ending{ID: u.ID}
		if a := tx.Alloc(u.ID); a != nil && !a.Stopping { // nothing is known of a promise
			one.At = turns.MayBeGone(tx.Remaining(&u))
		}
		ends = append(ends, one)
	}
	start := turns.Soonest(ends, func(gone map[string]bool) bool {
		return tx.ServesNow(w.node, w.need, func(u *place.Usage) bool { return gone[u.ID] })
	})
	w.start = &start
	return start
}
