// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// GoesBack reports whether a group that was let go has no room for what has not started where Nomad may
// start it: it waits in its place again, or goes where there is some. One that runs in part keeps to the
// nodes where it runs, and a gang goes back as one.
func GoesBack(tx *state.Tx, key nomad.JobKey, g *record.Group) bool {
	if !places(&g.Ask) || g.Ask.Gang && gangRuns(tx, key, gangAsks(tx.Queue.Record(key))) || g.Decision.Hold != nil {
		return false
	}
	_, most := slots(tx, g)
	keeps := tx.Cluster.Live(key, g.Ask.Group) > 0 && (most == 0 || g.Decision.Slots > 0 && g.Decision.Slots <= most)
	return !keeps && mayHold(tx, key, &g.Ask) && !hasRoom(tx, g)
}

// hasRoom reports whether a node where Nomad may start a group has room for its device blocks as they are.
func hasRoom(tx *state.Tx, g *record.Group) bool {
	room := tx.Capacity.RoomFor(blocks.NeedOf(tx, g))
	if len(g.Decision.Candidates) == 0 {
		return room.AnyNow(g.Excluded)
	}
	return slices.ContainsFunc(g.Decision.Candidates, func(id string) bool { return g.Excluded[id] == "" && room.On(id) == state.FitsNow })
}

// Refused reports whether Nomad does not start a group that was let go where the service sees room for it:
// a port is taken, a driver or a volume is missing. Room that is still being made is not there yet.
func Refused(tx *state.Tx, key nomad.JobKey, g *record.Group) bool {
	b, r, j := tx.Cluster.Blocked(key), tx.Queue.Record(key), tx.Cluster.Job(key)
	if b == nil || r == nil || j == nil || b.Missing[g.Ask.Group] == 0 || b.Index <= j.Index || g.Decision.Hold != nil || !places(&g.Ask) || !mayHold(tx, key, &g.Ask) {
		return false
	}
	need := blocks.NeedOf(tx, g)
	if !hasRoom(tx, g) && !slices.ContainsFunc(tx.Capacity.AssumedOf(key), func(a *state.Assumed) bool {
		return a.Group == g.Ask.Group && tx.Capacity.ServesNow(a.Usage.NodeID, need, func(u *place.Usage) bool { return u.ID == a.Usage.ID })
	}) {
		return false
	}
	if g.Ask.Gang || tx.Cluster.Live(key, g.Ask.Group) == 0 {
		return !g.Ask.Gang || !gangRuns(tx, key, gangAsks(r))
	}
	_, most := slots(tx, g)
	return tx.Capacity.Assumed(key, g.Ask.Group) > 0 || g.Decision.Slots == 0 || g.Decision.Slots > most
}
