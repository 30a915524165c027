package decide

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// MayRepeat reports whether a job may be registered again for its own sake, although Nomad then runs
// again what has completed of it: what waits of it has waited for long enough ([state.Reader.MayRepeat]), and
// its queues may pay for all of it.
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

// againAbove says why the queue of a group may not pay for what Nomad runs again of it, beside what waits
// of it; empty where it may. Nomad itself asks no queue.
func againAbove(tx *state.Tx, key nomad.JobKey, group string, g *record.Group) string {
	n, q := tx.CompletedOf(key, group), tx.QueueOf(key, group)
	if n == 0 || q == nil {
		return ""
	}
	_, why := tx.OverWithOwed(q.Name, g.Cost.Times(int64(n+tx.Missing(key, group))), key)
	return why
}

// needed reports whether a revision is made whatever has completed of the job: a part of it has to go,
// or to stay away from room that others get; or it is held, and nothing else lets it go. Each other one can
// wait, as [MayRepeat] says. Room that is on its way to a group is only recorded.
func (r *Revision) needed(was *record.Group) bool {
	letsGo := r.Retry || r.Prefer != "" || r.OnCPU || r.Align
	return r.Hold != nil || len(r.Exclude) > 0 || len(r.RoomMade) > 0 || was.Decision.Hold != nil && letsGo
}

// leftAsItIs is a group of a job that is not registered again.
func leftAsItIs(tx *state.Tx, key nomad.JobKey, g record.Group, r Revision) record.Group {
	if r.Prefer != "" {
		g.Attempts = roomMade(tx, key, &g, r.Prefer)
	}
	return g
}
