// SPDX-License-Identifier: MPL-2.0

package state

import "github.com/nomad-gpu/nomad-gpu/scheduler/nomad"

// departed are the jobs that left, whose records can go.
type departed struct{ Gone Outbox[nomad.JobKey] }

// TakeGone returns, once, the jobs that left and whose records can be deleted.
func (tx *Tx) TakeGone() []nomad.JobKey {
	var gone, later []nomad.JobKey
	for _, key := range tx.Gone.Take() {
		r := tx.Queue.Record(key)
		switch {
		case tx.Cluster.Job(key) != nil: // it has come back
		case r != nil && tx.Within(r.At, Unseen): // or is about to: this is newer than the departed one
			later = append(later, key)
		default:
			tx.ForgetRecord(key)
			gone = append(gone, key)
		}
	}
	tx.Gone.PutBack(later)
	return gone
}
