package decide

import (
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// reservedAway is the hold of a group that finds no room, and would if nobody
// had reserved any. Nomad knows of no reservation: without the hold it would
// start the group in the reserved room. Nil when that is not the reason.
func (b *Book) reservedAway(g *GroupRecord) *admit.Hold {
	var hold *admit.Hold
	var soonest time.Time
	w := b.writtenAs(g)
	for _, id := range b.nodeIDs() {
		if b.servesNow(id, w, nil) {
			return nil
		}
		until := b.reservedUntil(id)
		if until.IsZero() || hold != nil && !until.Before(soonest) || !b.servesNow(id, w, b.isReserved) {
			continue
		}
		soonest = until
		hold = &admit.Hold{Kind: view.WaitsForRoom, Sentence: fmt.Sprintf("the room on %s is reserved until %s", b.nodes[id].Plan.Name, until.UTC().Format(time.RFC3339))}
	}
	return hold
}

// isReserved reports whether a usage is a reservation that nobody has claimed.
func (b *Book) isReserved(u *place.Usage) bool {
	r := b.claims[u.ID]
	return r != nil && r.ClaimedBy == ""
}

// reservedUntil is when the last reservation on a node expires that nobody has
// claimed; zero when there is none.
func (b *Book) reservedUntil(node string) time.Time {
	var until time.Time
	for _, r := range b.claims {
		if r.ClaimedBy == "" && r.Usage.NodeID == node && r.ExpiresAt.After(until) {
			until = r.ExpiresAt
		}
	}
	return until
}
