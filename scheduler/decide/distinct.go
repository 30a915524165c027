// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// hostsOf are the nodes that have, or were promised, an alloc from which an ask's distinct_hosts
// keeps away; nil where it has no such constraint.
func hostsOf(tx *state.Tx, key nomad.JobKey, a *admit.Ask) map[string]bool {
	if a.Distinct == "" {
		return nil
	}
	taken := map[string]bool{}
	counts := func(group string) bool { return a.Distinct == admit.DistinctInJob || group == a.Group }
	for _, alloc := range tx.Cluster.AllocsOf(key) {
		if counts(alloc.Group) && !alloc.Stopping {
			taken[alloc.NodeID] = true
		}
	}
	for _, promised := range tx.Capacity.AssumedOf(key) {
		if counts(promised.Group) {
			taken[promised.Usage.NodeID] = true
		}
	}
	return taken
}
