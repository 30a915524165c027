package decide

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
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
	var list, later, last []string
	start, w := startAt(g, len(b.order)), b.writtenAs(g)
	for i := range b.order {
		id := b.order[(start+i)%len(b.order)]
		if g.Excluded[id] != "" || slices.Contains(g.Decision.Preferred, id) {
			continue
		}
		switch b.rank(id, w) {
		case fitsNow:
			list = append(list, id)
		case fitsLater:
			later = append(later, id)
		case fitsWhenBack:
			last = append(last, id)
		}
		if len(list) >= limit {
			break
		}
	}
	list = slices.Concat(g.Decision.Preferred, list, later, last)
	list = list[:min(limit, len(list))]
	if len(list) == 0 && len(g.Excluded) > 0 {
		return []string{noNode}
	}
	slices.Sort(list)
	return list
}

// startAt spreads the candidates of different groups over the cluster.
func startAt(g *GroupRecord, nodes int) int {
	if nodes == 0 {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(g.Ask.Namespace + "/" + g.Ask.JobID + "/" + g.Ask.Group))
	return int(h.Sum32() % uint32(nodes))
}

// noNode stands where no node at all may be a candidate: an empty list would
// mean every node.
const noNode = "none"

// fit is how well a node can take a group.
type fit int

const (
	fitsNever fit = iota
	fitsNow
	fitsLater    // when other work ends
	fitsWhenBack // when the node takes work again
)

func (b *Book) rank(node string, w *written) fit {
	n := b.nodes[node]
	switch {
	case !b.snap.Admits(node, &w.node):
		return fitsNever
	case !n.Plan.Ineligible && b.snap.Serves(node, &w.alloc, nil):
		return fitsNow
	case !b.snap.Serves(node, &w.alloc, place.Everything):
		return fitsNever
	case n.Plan.Ineligible:
		return fitsWhenBack
	}
	return fitsLater
}

// nodeIDs lists all nodes in order. The list must not be changed.
func (b *Book) nodeIDs() []string { return b.order }

func compareKeys(x, y nomad.JobKey) int {
	return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.ID, y.ID))
}
