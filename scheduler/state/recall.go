// SPDX-License-Identifier: MPL-2.0

package state

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// orphaned is how long a record outlives a job that Nomad does not have.
const orphaned = time.Hour

// fresh is how old a decision may be for its allocs to be still on their way to
// Nomad when the leader changes.
const fresh = time.Minute

// Recall takes a stored record, with its promises of a moment ago. It returns
// false for one whose job is gone.
func (tx *Tx) Recall(r *record.Record) bool {
	key := r.Key()
	j := tx.Cluster.Job(key)
	if j == nil && tx.Now().Sub(r.At) > orphaned {
		return false
	}
	if j != nil && r.Index > 0 && j.Index > r.Index { // registered since then
		r.Settled = r.At
	}
	tx.Keep(r)
	for name, g := range r.Groups {
		tx.NoteDecision(g.Shown)
		if g.Decision.Hold != nil || j != nil && j.Stopped || tx.Now().Sub(r.At) > fresh {
			continue
		}
		tx.Forget(key, name)
		tx.AssumeRest(key, name, g.Assumed, g.Ask.Count-tx.Cluster.Live(key, name))
	}
	if j == nil || !j.Stopped {
		tx.recallRoom(r)
	}
	return true
}

// recallRoom books again the room that was being made for a group held until all of it is there,
// when another replica led: as long as that has not been too long ago, or what goes for it has not
// ended.
func (tx *Tx) recallRoom(r *record.Record) {
	key, since := r.Key(), time.Time{}
	for _, g := range r.Groups {
		if g.Decision.Hold == nil {
			continue
		}
		if at := g.Attempts.At; tx.Within(at, Unplaced) && at.After(since) {
			since = at
		}
		if tx.stillGoes(&g) {
			since = tx.Now()
		}
	}
	if since.IsZero() {
		return
	}
	for name, g := range r.Groups {
		if g.Decision.Hold == nil || tx.Cluster.Live(key, name) > 0 {
			continue
		}
		tx.Forget(key, name)
		for _, u := range g.Assumed {
			tx.assume(key, name, u, true, since)
		}
	}
}

// stillGoes reports whether something has not ended yet where room is being made for a group: it
// may be what began to end when that was decided.
func (tx *Tx) stillGoes(g *record.Group) bool {
	return tx.Cluster.allocs.stillEnds(g.Attempts.At, func(node string) bool {
		return slices.ContainsFunc(g.Assumed, func(u place.Usage) bool { return u.NodeID == node })
	})
}
