// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Nomad may not start what there is room for: a port is taken, a driver or a volume is
// missing. The service does not see such reasons and would try for ever, at the cost of
// allocs stopped and evicted meanwhile. So each attempt that came to nothing is counted,
// with what Nomad said, and the next one waits longer. It leaves out the node of the one
// before: at most one attempt in a day is in vain there.

// SentBack is the hold of a gang that Nomad started only in part.
func SentBack(started int, of *admit.Ask, why string) string {
	text := fmt.Sprintf("Nomad started %d of its %d allocs, which start together", started, of.Together())
	if why != "" {
		text += ", and says of the others: " + why
	}
	return text
}

// NotStarted is the hold of a group that Nomad did not start where there is room.
func NotStarted(why string) string {
	text := "Nomad did not start it where there seems to be room"
	if why != "" {
		text += ": " + why
	}
	return text
}

// Rests reports whether a group that went back is not tried yet.
func Rests(g *record.Group, now time.Time) bool {
	return wentBack(g) && now.Before(g.Attempts.Until())
}

// wentBack reports whether the last attempt was that Nomad did not start a group, or a gang in part.
func wentBack(g *record.Group) bool {
	return g.Attempts.Times > 0 && g.Attempts.Missing == 0
}

// restHold says why a group went back, and when it is tried again.
func restHold(a *record.Attempts) *admit.Hold {
	text := a.Why
	if a.Until().After(a.At) {
		text += fmt.Sprintf("; it went back %d times and is tried again at %s, or when it is submitted again", a.Times, record.Clock(a.Until()))
	}
	return &admit.Hold{Kind: view.WaitsForRoom, Sentence: text}
}

// roomMade counts that room is made for a group: on one node or, for a group that is held, on several.
// It is one more attempt if the last one started nothing of what waited then; otherwise it is the first.
func roomMade(tx *state.Tx, key nomad.JobKey, g *record.Group, node string) record.Attempts {
	now, missing, why := tx.Now(), 0, ""
	if b := tx.Cluster.Blocked(key); b != nil {
		missing, why = b.Missing[g.Ask.Group], b.Why[g.Ask.Group]
	}
	if g.Decision.Hold != nil {
		why = "" // Nomad speaks of the hold
	}
	missing = max(1, missing) // 0: it went back
	next := record.Attempts{Times: 1, At: now, Missing: missing}
	if inVain(tx, key, g) {
		next = g.Attempts.Again(now, missing, why)
	}
	next.Nodes = triedInVain(tx, key, g)
	if n := tx.Cluster.Node(node); n != nil && g.Decision.Hold == nil {
		if next.Nodes == nil {
			next.Nodes = map[string]record.Tried{}
		}
		next.Nodes[node] = record.Tried{Index: n.Index, At: now}
	}
	return next
}

// inVain reports whether the last attempt started none of the allocs that have waited
// ever since.
func inVain(tx *state.Tx, key nomad.JobKey, g *record.Group) bool {
	b := tx.Cluster.Blocked(key)
	return b != nil && b.Missing[g.Ask.Group] >= g.Attempts.Missing && b.Since.Before(g.Attempts.At)
}

// triedInVain is where room was made for a group and Nomad did not start it, although no other
// took the room. Of held groups nothing is known: Nomad did not look for room for them.
func triedInVain(tx *state.Tx, key nomad.JobKey, g *record.Group) map[string]record.Tried {
	var nodes map[string]record.Tried
	for id, t := range g.Attempts.Nodes {
		n, last := tx.Cluster.Node(id), t.At.Equal(g.Attempts.At)
		if n == nil || !t.Counts(tx.Now(), n.Index) || last && (!inVain(tx, key, g) || taken(tx, key, g, id, t.At)) {
			continue
		}
		if nodes == nil {
			nodes = map[string]record.Tried{}
		}
		nodes[id] = t
	}
	return nodes
}

// taken reports whether another job got GPUs of a node soon after a moment, which explains why this one did
// not start. Nomad places jobs with a higher priority first, but several at once: so one with a lower
// priority explains it only where Nomad says that this one waits for devices alone. What Nomad placed
// later explains nothing.
func taken(tx *state.Tx, key nomad.JobKey, g *record.Group, node string, since time.Time) bool {
	b := tx.Cluster.Blocked(key)
	forDevices := b != nil && b.ForDevices[g.Ask.Group]
	for a := range tx.Cluster.AllocsOn(node) {
		u, booked := tx.Capacity.Usage(a.ID)
		if !booked || len(u.Takes) == 0 || a.Key() == key || !a.Created.After(since) || !a.Created.Before(since.Add(state.Unplaced)) {
			continue
		}
		if forDevices || tx.Cluster.PriorityOf(a.Key()) >= tx.Cluster.PriorityOf(key) {
			return true
		}
	}
	return false
}

// MayEvictFor reports whether evictions for a group may come to something: after two
// that did not, none are tried before its rest is over, and none at all for a gang that
// Nomad does not start as a whole.
func MayEvictFor(g *record.Group, now time.Time) bool {
	mayAgain := !g.Ask.Gang || g.Decision.Hold != nil && !wentBack(g)
	return g.Attempts.Times < 2 || mayAgain && !now.Before(g.Attempts.Until())
}
