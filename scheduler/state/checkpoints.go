// SPDX-License-Identifier: MPL-2.0

package state

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// checkpoints are when jobs told last that their work is saved.
type checkpoints struct{ at map[nomad.JobKey]time.Time }

// Saved takes when each job told last that its work is saved.
func (s *State) Saved(at map[nomad.JobKey]time.Time) {
	s.Do(func(tx *Tx) {
		before := tx.Cluster.checkpoints.at
		tx.Cluster.checkpoints.at = at
		for key, when := range at {
			if !before[key].Equal(when) {
				tx.rebookJob(key)
			}
		}
		for key := range before {
			if _, still := at[key]; !still {
				tx.rebookJob(key)
			}
		}
	})
}

// workSaved is how much of an alloc's run time an eviction would not lose.
func (c *checkpoints) workSaved(a *nomad.Alloc) time.Duration {
	at := c.at[a.Key()]
	if own := a.SavedAt(); own.After(at) {
		at = own
	}
	return max(0, at.Sub(a.Created))
}
