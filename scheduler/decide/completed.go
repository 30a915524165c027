package decide

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// MayRepeat reports whether a job may be registered again for its own sake, although Nomad then runs
// its completed allocs again: its waiting allocs have waited for long enough ([state.Reader.MayRepeat]),
// and its queues can pay for all that starts.
func MayRepeat(tx *state.Tx, key nomad.JobKey) bool {
	if !tx.MayRepeat(key) {
		return false
	}
	if r := tx.Record(key); r != nil && tx.Completed(key) > 0 {
		for name, g := range r.Groups {
			if againAbove(tx, key, name, &g) != "" {
				return false
			}
		}
	}
	return true
}

// againAbove says why the queue of a group cannot pay for the completed allocs that Nomad would run
// again, besides those that wait; empty if it can, or if there are none. Nomad itself does not ask.
func againAbove(tx *state.Tx, key nomad.JobKey, group string, g *record.Group) string {
	n, q := tx.CompletedOf(key, group), tx.QueueOf(key, group)
	if n == 0 || q == nil {
		return ""
	}
	_, why := tx.OverWithOwed(q.Name, g.Cost.Times(int64(n+tx.Missing(key, group))), key)
	return why
}

// needed reports whether a revision cannot wait, even if Nomad then runs completed allocs again:
// something of the job has to stop, it has to stay off room that another job gets, it is released from
// a hold, or room is made for a group that is held. All other revisions wait until [MayRepeat] allows
// them.
func (r *Revision) needed(was *record.Group) bool {
	letsGo := r.Retry || r.Prefer != "" || r.OnCPU || r.Align
	return r.Hold != nil || len(r.Exclude) > 0 || len(r.RoomMade) > 0 || was.Decision.Hold != nil && letsGo
}

// leftAsItIs is the record of a group whose job is not registered again: it only counts the attempt
// where room was made.
func leftAsItIs(tx *state.Tx, key nomad.JobKey, g record.Group, r Revision) record.Group {
	if r.Prefer != "" {
		g.Attempts = roomMade(tx, key, &g, r.Prefer)
	}
	return g
}
