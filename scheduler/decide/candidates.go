package decide

import (
	"hash/fnv"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// candidates are the nodes that may run a group. Nil means every node: in
// clusters that Nomad looks at as a whole, nothing is gained by less. In
// larger ones it is the preferred nodes, then those with room now, then those
// that have room when others end; nodes that cannot take work come last.
func candidates(tx *state.Tx, g *record.Group) []string {
	if len(g.Only) > 0 {
		return g.Only
	}
	nodes := tx.NodeIDs()
	if len(nodes) <= everyNode && len(g.Excluded) == 0 {
		return nil
	}
	limit := tx.Config().Placement.Candidates
	if len(nodes) <= everyNode {
		limit = everyNode
	}
	var list, later, last []string
	start, room := startAt(g, len(nodes)), tx.RoomFor(blocks.NeedOf(tx, g))
	for i := range nodes {
		if len(list) >= limit || i >= enough*limit && len(list)+len(later) >= limit {
			break
		}
		id := nodes[(start+i)%len(nodes)]
		if g.Excluded[id] != "" || slices.Contains(g.Decision.Preferred, id) {
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
	list = slices.Concat(g.Decision.Preferred, list, later, last)
	list = list[:min(limit, len(list))]
	if len(list) == 0 && len(g.Excluded) > 0 {
		return []string{blocks.NoNode}
	}
	slices.Sort(list)
	return list
}

// enough is how many times as many nodes as candidates are looked at for such as have
// room now, where enough would have it later: in a full cluster none has.
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
