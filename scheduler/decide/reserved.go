package decide

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// reservedAway is the hold of a group that finds no room, and would if nobody
// had reserved any. Nomad knows of no reservation: without the hold it would
// start the group in the reserved room. Nil when that is not the reason.
func (b *Book) reservedAway(a *admit.Ask, blocks []block) *admit.Hold {
	var hold *admit.Hold
	var soonest time.Time
	for _, id := range b.nodeIDs() {
		n := b.nodes[id]
		if n.Plan.Ineligible || !admits(n, a) {
			continue
		}
		r := b.roomOn(n)
		if r.serve(n, a.CPUMHz, a.MemoryMiB, blocks) {
			return nil
		}
		r.instances, r.milli = slices.Clone(r.instances), slices.Clone(r.milli)
		until := b.withoutReservations(id, &r)
		if until.IsZero() || !r.serve(n, a.CPUMHz, a.MemoryMiB, blocks) || hold != nil && !until.Before(soonest) {
			continue
		}
		soonest = until
		hold = &admit.Hold{Kind: view.WaitsForRoom, Sentence: fmt.Sprintf("the room on %s is reserved until %s", n.Plan.Name, until.UTC().Format(time.RFC3339))}
	}
	return hold
}

// withoutReservations frees what nobody has claimed on a node, and returns when
// the last of it expires; zero when nothing is reserved there.
func (b *Book) withoutReservations(node string, r *room) time.Time {
	var until time.Time
	for _, claim := range b.claims {
		if claim.ClaimedBy != "" || claim.Usage.NodeID != node {
			continue
		}
		r.take(b.nodes[node], &claim.Usage, -1)
		if claim.ExpiresAt.After(until) {
			until = claim.ExpiresAt
		}
	}
	return until
}
