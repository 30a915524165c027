package decide

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// candidates are the nodes that may run a group. Nil means every node: in
// clusters that Nomad looks at as a whole, nothing is gained by less. In
// larger ones it is the preferred nodes, then those with room now, then those
// that have room when others end; nodes that cannot take work come last.
func (b *Book) candidates(g *GroupRecord) []string {
	if len(b.nodes) <= everyNode && len(g.Excluded) == 0 {
		return nil
	}
	limit := b.config.Placement.Candidates
	if len(b.nodes) <= everyNode {
		limit = everyNode
	}
	ranks := map[string]int{}
	for id, n := range b.nodes {
		if g.Excluded[id] != "" || !admits(n, &g.Ask) || len(g.Blocks) > 0 && !roomOf(n, nil).serve(n, g.Ask.CPUMHz, g.Ask.MemoryMiB, g.Blocks) {
			continue
		}
		ranks[id] = b.rank(n, g)
	}
	list := slices.SortedFunc(maps.Keys(ranks), func(x, y string) int {
		return cmp.Or(ranks[x]-ranks[y], strings.Compare(x, y))
	})
	if len(list) == 0 && len(g.Excluded) > 0 {
		return []string{noNode}
	}
	return list[:min(limit, len(list))]
}

// noNode stands where no node at all may be a candidate: an empty list would
// mean every node.
const noNode = "none"

func (b *Book) rank(n *nomad.Node, g *GroupRecord) int {
	switch at := slices.Index(g.Decision.Preferred, n.Plan.ID); {
	case at >= 0:
		return at - len(g.Decision.Preferred)
	case n.Plan.Ineligible:
		return 2
	case len(g.Blocks) > 0 && !roomOf(n, b.usagesOn(n.Plan.ID)).serve(n, g.Ask.CPUMHz, g.Ask.MemoryMiB, g.Blocks):
		return 1
	}
	return 0
}

func (b *Book) nodeIDs() []string { return slices.Sorted(maps.Keys(b.nodes)) }

func compareKeys(x, y nomad.JobKey) int {
	return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.ID, y.ID))
}
