// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"hash/fnv"
	"maps"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// everyNode is up to how many nodes Nomad looks at all of them by itself when
// a group has affinities. In larger clusters the best node might be outside
// the sample, so the candidates are narrowed.
const everyNode = 100

// narrow sets the nodes that may run a group. One of which only a part has its room goes there and
// nowhere else, and not more of it: Nomad would start the rest in any room that comes free.
func narrow(tx *state.Tx, g *record.Group) {
	if g.Ask.Child {
		return // Nomad chooses its node
	}
	nodes, most := slots(tx, g)
	if most == 0 {
		nodes = candidates(tx, g)
	}
	g.Decision.Candidates, g.Decision.Slots = nodes, most
}

// slots are the nodes where allocs of a group run or are promised room, and how many the most on one;
// none where all of it has its room or goes back as one.
func slots(tx *state.Tx, g *record.Group) (nodes []string, most int) {
	key := nomad.JobKey{Namespace: g.Ask.Namespace, ID: g.Ask.JobID}
	if !places(&g.Ask) || len(g.Only) > 0 || g.Ask.Together() == g.Ask.Count {
		return nil, 0
	}
	each, canaries := map[string]int{}, 0
	for _, a := range tx.Cluster.AllocsOf(key) {
		if a.Group == g.Ask.Group && !a.Stopping && g.Excluded[a.NodeID] == "" {
			each[a.NodeID]++
			if a.Canary {
				canaries++
			}
		}
	}
	for _, a := range tx.Capacity.AssumedOf(key) {
		if a.Group == g.Ask.Group {
			each[a.Usage.NodeID]++
		}
	}
	all := 0
	for _, n := range each {
		all, most = all+n, max(most, n)
	}
	if canaries > 0 && tx.Cluster.Blocked(key).Allocs(g.Ask.Group) > 0 { // what they run beside is not of what is missing
		all = canaries + tx.Capacity.Assumed(key, g.Ask.Group)
	}
	switch {
	case all >= g.Ask.Count:
		return nil, 0
	case all == 0 && tx.Cluster.Live(key, g.Ask.Group) > 0 && tx.Cluster.Blocked(key).Allocs(g.Ask.Group) > 0: // all that runs is on nodes that it is to leave
		return []string{blocks.NoNode}, 1
	}
	return slices.Sorted(maps.Keys(each)), most
}

// candidates are the nodes that may run a group. Nil means every node: in
// clusters that Nomad looks at as a whole, nothing is gained by less. In
// larger ones it is the preferred nodes, then those with room now, then those
// that have room when others end; nodes that cannot take work come last. Nodes where allocs of
// the group run stay among them: Nomad would replace those allocs.
func candidates(tx *state.Tx, g *record.Group) []string {
	if len(g.Only) > 0 {
		return g.Only
	}
	nodes := tx.Cluster.NodeIDs()
	if len(nodes) <= everyNode && len(g.Excluded) == 0 {
		return nil
	}
	limit := tx.Config().Placement.Candidates
	if len(nodes) <= everyNode {
		limit = everyNode
	}
	stay := runsOn(tx, g)
	limit = max(limit, len(stay))
	var list, later, last []string
	start, room := startAt(g, len(nodes))+g.Attempts.Times*limit, tx.Capacity.RoomFor(blocks.NeedOf(tx, g)) // others than in vain
	for i := range nodes {
		if len(list) >= limit || i >= enough*limit && len(list)+len(later) >= limit {
			break
		}
		id := nodes[(start+i)%len(nodes)]
		if g.Excluded[id] != "" || slices.Contains(g.Decision.Preferred, id) || slices.Contains(stay, id) {
			continue
		}
		switch room.On(id) {
		case state.FitsNow:
			list = append(list, id)
		case state.FitsLater:
			later = append(later, id)
		case state.FitsWhenBack:
			last = append(last, id)
		}
	}
	for _, id := range g.Decision.Preferred {
		if !slices.Contains(stay, id) {
			stay = append(stay, id)
		}
	}
	list = slices.Concat(stay, list, later, last)
	list = list[:min(limit, len(list))]
	if len(list) == 0 && len(g.Excluded) > 0 {
		return []string{blocks.NoNode}
	}
	slices.Sort(list)
	return list
}

// runsOn are the nodes where allocs of a group run, but for those that it is to leave.
func runsOn(tx *state.Tx, g *record.Group) []string {
	var nodes []string
	for _, a := range tx.Cluster.AllocsOf(nomad.JobKey{Namespace: g.Ask.Namespace, ID: g.Ask.JobID}) {
		if a.Group == g.Ask.Group && !a.Stopping && g.Excluded[a.NodeID] == "" && !slices.Contains(nodes, a.NodeID) {
			nodes = append(nodes, a.NodeID)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// enough bounds the search for nodes that have room now: once there are enough that will have it
// later, only enough times as many nodes as candidates are looked at. In a full cluster, none has.
const enough = 4

// startAt spreads the candidates of different groups over the cluster.
func startAt(g *record.Group, nodes int) int {
	if nodes == 0 {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(g.Ask.Namespace + "/" + g.Ask.JobID + "/" + g.Ask.Group))
	return int(h.Sum32() % uint32(nodes))
}
