// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// GoesBack reports whether a group that was let go has no room for what has not started: it waits in its
// place again, or goes where there is some. One that runs in part keeps to the nodes where it runs, and a
// gang goes back as one.
func GoesBack(tx *state.Tx, key nomad.JobKey, g *record.Group) bool {
	if !places(&g.Ask) || g.Ask.Gang && gangRuns(tx, key, gangAsks(tx.Record(key))) || g.Decision.Hold != nil {
		return false
	}
	_, most := slots(tx, g)
	keeps := tx.Live(key, g.Ask.Group) > 0 && (g.Decision.Slots > 0 || most == 0)
	return !keeps && mayHold(tx, key, &g.Ask) && !tx.RoomFor(blocks.NeedOf(tx, g)).AnyNow(g.Excluded)
}

// HasRoom reports whether any node has room for a group's device blocks as they are.
func HasRoom(tx *state.Tx, g *record.Group) bool {
	return tx.RoomFor(blocks.NeedOf(tx, g)).Count(state.FitsNow) > 0
}

// FitsOutside reports whether a node that is not among the candidates has room for
// a group: its candidates died or filled up.
func FitsOutside(tx *state.Tx, g *record.Group) bool {
	if len(g.Decision.Candidates) == 0 || len(g.Excluded) > 0 {
		return false
	}
	room := tx.RoomFor(blocks.NeedOf(tx, g))
	return room.Count(state.FitsNow) > 0 && !slices.ContainsFunc(g.Decision.Candidates, func(id string) bool { return room.On(id) == state.FitsNow })
}
