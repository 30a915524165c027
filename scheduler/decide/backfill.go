package decide

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// early and late are the chances with which work ends no sooner, and no later, than is
// reckoned with where another group depends on it.
const early, late = 0.05, 0.95

// endsBefore reports whether an alloc of a group will have ended before a waiting group
// could start on the node that is kept for it, by what authors say and what others like
// them did: then it may use that room meanwhile.
func endsBefore(a groupAsk, u *blocks.Placed, w *waiter) bool {
	if a.ask.JobType != "batch" {
		return false
	}
	runs := a.tx.RunTime(a.key, a.ask.Group, a.ask.TimeLimit, u.Usage.Takes)
	return runs.Known() && runs.At(late) <= w.soonest(a.tx)
}

// soonest is when a group could start on the node that is kept for it, if all that is in
// its way ended early. What is not known to end may be gone at any moment.
func (w *waiter) soonest(tx *state.Tx) time.Duration {
	if w.start != nil {
		return *w.start
	}
	type ending struct {
		id string
		at time.Duration
	}
	var ends []ending
	goes := tx.Leaves(w.turn.Priority, w.key)
	for _, u := range tx.UsagesOn(w.node) {
		if !goes(&u) {
			continue
		}
		one := ending{id: u.ID}
		if left := tx.Remaining(&u); left.Known() && !tx.Alloc(u.ID).Stopping {
			one.at = left.At(early)
		}
		ends = append(ends, one)
	}
	slices.SortFunc(ends, func(a, b ending) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.id, b.id)) })
	gone, start := map[string]bool{}, time.Duration(0)
	for _, e := range ends {
		if tx.ServesNow(w.node, w.need, func(u *place.Usage) bool { return gone[u.ID] }) {
			break
		}
		gone[e.id], start = true, e.at
	}
	w.start = &start
	return start
}
