// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// A child of a periodic or parameterized job waits in the order like any other job. But of what Nomad
// has of it only counts can be changed: its device blocks are those of its parent, and the node that it
// starts on is Nomad's choice among all that may run it.

// asBorn is the decision about a group of a child with all that cannot be changed as it is registered.
func asBorn(g *record.Group, a *admit.Ask) {
	if a.Was == nil {
		return
	}
	born := a.Was.Decision(a.Group)
	born.Hold, born.Explanation = g.Decision.Hold, g.Decision.Explanation
	g.Ask, g.Decision = stored(a), born
}

// astray is the hold of a child for which there is room, but which Nomad might start in room that is
// booked or kept for others; nil where it might not.
func (d *decider) astray(g *record.Group) *admit.Hold {
	tx, need := d.tx, blocks.NeedOf(d.tx, g)
	own, nodes := map[string]bool{}, map[string]bool{}
	booked, until := unclaimed(tx)
	for id := range until {
		nodes[id] = true
	}
	for _, p := range tx.Capacity.AllAssumed() {
		switch {
		case p.Job == d.key:
			own[p.Usage.ID] = true
		case !tx.Cluster.Scaled(p.Job):
			booked[p.Usage.ID], nodes[p.Usage.NodeID] = true, true
		}
	}
	mine := func(u *place.Usage) bool { return own[u.ID] }
	physically := func(u *place.Usage) bool { return own[u.ID] || booked[u.ID] }
	for _, id := range tx.Cluster.NodeIDs() {
		if nodes[id] && tx.Capacity.ServesNow(id, need, physically) && !tx.Capacity.ServesNow(id, need, mine) {
			return &admit.Hold{Kind: view.WaitsForRoom, Sentence: fmt.Sprintf("Nomad chooses the node of a child, and might take room on %s that others are promised", tx.Cluster.Node(id).Plan.Name)}
		}
	}
	work := d.work()
	for first := range d.turns().Before(work) {
		there := d.on(func([]string) []string { return []string{first.Node} })
		if u, err := blocks.Cluster(tx).Place(there.parts); err == nil {
			if hold := holdOf(d.turns().KeptFor(work, &u.Usage), d.key); hold != nil {
				return hold
			}
		}
	}
	return nil
}
