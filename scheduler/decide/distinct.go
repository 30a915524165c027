package decide

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// spread leaves out the nodes on which distinct_hosts allows no other alloc of the
// ask: those that have, or were promised, one.
func (p *groupPlacer) spread() {
	taken := hostsOf(p.tx, p.key, p.ask)
	if len(taken) == 0 {
		return
	}
	for i := range p.parts {
		p.parts[i] = p.parts[i].On(blocks.Cluster(p.tx).Without(p.parts[i].Req.Nodes, taken))
	}
}

// hostsOf are the nodes with an alloc that an ask's distinct_hosts keeps away from;
// nil where it has no such constraint.
func hostsOf(tx *state.Tx, key nomad.JobKey, a *admit.Ask) map[string]bool {
	if a.Distinct == "" {
		return nil
	}
	taken := map[string]bool{}
	counts := func(group string) bool { return a.Distinct == admit.DistinctInJob || group == a.Group }
	for _, alloc := range tx.AllocsOf(key) {
		if counts(alloc.Group) && !alloc.Stopping {
			taken[alloc.NodeID] = true
		}
	}
	for _, promised := range tx.AssumedOf(key) {
		if counts(promised.Group) {
			taken[promised.Usage.NodeID] = true
		}
	}
	return taken
}
