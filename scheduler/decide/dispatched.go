// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Dispatched assumes that Nomad places a child which it has made of a parameterized job, until
// Nomad shows its allocs. The asks are the parent's. Without it all jobs dispatched at once
// would be decided about as if each were the only one, and a dispatched job is never taken back.
// It reports whether all of the child counts: an alloc without room does once Nomad shows that it waits.
func Dispatched(inTime func() error, tx *state.Tx, child nomad.JobKey, asks []admit.Ask) bool {
	if tx.Cluster.Blocked(child) != nil {
		return true
	}
	var missing []admit.Ask
	for _, a := range asks {
		a.JobID, a.Was = child.ID, nil
		if a.Count -= tx.Cluster.Live(child, a.Group); a.Count > 0 {
			missing = append(missing, a)
		}
	}
	if len(missing) == 0 {
		return true
	}
	// An alloc without room is not assumed: it waits in Nomad's own order.
	if _, _, err := Job(inTime, tx, child, missing, record.New(child)); err != nil {
		return false
	}
	tx.Changed()
	return !slices.ContainsFunc(missing, func(a admit.Ask) bool { return tx.Capacity.Assumed(child, a.Group) < a.Count })
}
