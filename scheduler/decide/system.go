// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// A system job starts on every node that can take it, those that join later too. What
// its queue could not pay for when it was submitted was refused; where it grows beyond
// that with the cluster, it is held to the nodes that the queue pays for.

// HoldToNodes holds a system group to the nodes on which it runs, without one.
func HoldToNodes(tx *state.Tx, key nomad.JobKey, group, without string) Revision {
	var nodes []string
	for _, a := range tx.Cluster.AllocsOf(key) {
		if a.Group == group && a.NodeID != without && !a.Stopping && !slices.Contains(nodes, a.NodeID) {
			nodes = append(nodes, a.NodeID)
		}
	}
	if len(nodes) == 0 {
		nodes = []string{blocks.NoNode}
	}
	slices.Sort(nodes)
	return Revision{Group: group, Only: nodes}
}

// Widen gives a system group that is held to some nodes one more, or all, where its
// queue can pay for that; false where it cannot.
func Widen(tx *state.Tx, key nomad.JobKey, g *record.Group) (Revision, bool) {
	q := tx.Cluster.QueueOf(key, g.Ask.Group)
	room := tx.Capacity.RoomFor(blocks.NeedOf(tx, g))
	var more []string
	for _, id := range tx.Cluster.NodeIDs() {
		if how := room.On(id); (how == state.FitsNow || how == state.FitsLater) && !slices.Contains(g.Only, id) {
			more = append(more, id)
		}
	}
	cost := g.Cost.Times(int64(max(1, g.Ask.Count)))
	switch {
	case q == nil || tx.Queue.OverQuota(q.Name, cost.Times(int64(len(more)))) == "":
		return Revision{Group: g.Ask.Group, Everywhere: true}, true
	case tx.Queue.OverQuota(q.Name, cost) != "":
		return Revision{}, false
	}
	nodes := slices.DeleteFunc(append(slices.Clone(g.Only), more[0]), func(id string) bool { return id == blocks.NoNode })
	slices.Sort(nodes)
	return Revision{Group: g.Ask.Group, Only: nodes}, true
}
