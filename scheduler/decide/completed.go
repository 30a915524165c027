// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Unchanged ends promises to ended allocs of a job that its author submitted again as it was, and
// that was changed last at an index: Nomad starts nothing of that again, and else room would be kept for nothing. While
// less than that is known of Nomad, they stay: another version may be about to start.
func Unchanged(tx *state.Tx, key nomad.JobKey, asks []admit.Ask, index uint64) {
	j, r := tx.Cluster.Job(key), tx.Queue.Record(key)
	if j == nil || r == nil || tx.Cluster.Index() < index {
		return
	}
	for i := range asks {
		group := asks[i].Group
		left := asks[i].Count - tx.Cluster.Live(key, group) - tx.Queue.CompletedOf(key, group)
		if asks[i].Later || !j.Stopped && tx.Queue.CompletedOf(key, group) == 0 {
			continue
		}
		tx.Forget(key, group)
		if !j.Stopped {
			tx.AssumeRest(key, group, r.Groups[group].Assumed, left)
		}
	}
	tx.Changed()
}

// needed reports whether a revision cannot wait, even if Nomad then runs completed allocs again:
// something of the job has to stop, it has to stay off room that another job gets, it is released from
// a hold, or room is made for a group that is held. All other revisions wait until [state.Repeats.May] allows
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
