package decide

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// unit is one alloc, placed: all its parts on one node.
type unit struct {
	node  string
	score int64
	parts []place.Usage // per part
	usage place.Usage   // together
}

// board is a snapshot with its planner: the cluster as it is, or empty.
type board struct {
	snap *place.Snapshot
	plan *place.Planner
	// nodes lists all node IDs, in order.
	nodes func() []string
}

// tries bounds how many nodes are tried for an alloc of several parts.
const tries = 8

// place finds the node for one alloc. It books nothing.
func (on board) place(parts []part) (unit, error) {
	if len(parts) == 1 {
		p, err := on.plan.Place(&parts[0].req)
		if err != nil {
			return unit{}, err
		}
		return unit{node: p.NodeID, score: p.Score, parts: []place.Usage{p.Usage}, usage: p.Usage}, nil
	}
	banned := map[string]bool{}
	for range tries {
		u, at, err := on.together(parts, banned)
		if err == nil {
			return u, nil
		}
		if at == "" || !errors.Is(err, place.ErrNoRoom) {
			return unit{}, err
		}
		banned[at] = true
	}
	return unit{}, fmt.Errorf("place %d device blocks on one node: %w", len(parts), place.ErrNoRoom)
}

// together places the first part where it likes best and the others beside
// it. On failure it returns the node that did not do.
func (on board) together(parts []part, banned map[string]bool) (u unit, at string, err error) {
	var applied []string
	defer func() {
		for _, id := range applied {
			_, undo := on.snap.Release(id)
			err = errors.Join(err, undo)
		}
	}()
	for _, p := range parts {
		r := p.req
		if u.node != "" {
			r.Nodes = []string{u.node}
		} else if len(banned) > 0 {
			r.Nodes = on.without(r.Nodes, banned)
		}
		found, err := on.plan.Place(&r)
		if err != nil {
			return unit{}, u.node, err
		}
		u.node, u.score = found.NodeID, u.score+found.Score
		u.parts = append(u.parts, found.Usage)
		if err := on.snap.Apply(found.Usage); err != nil {
			return unit{}, u.node, err
		}
		applied = append(applied, found.Usage.ID)
	}
	u.usage = merge(u.parts)
	return u, u.node, nil
}

// without lists the nodes that are not banned.
func (on board) without(nodes []string, banned map[string]bool) []string {
	if len(nodes) == 0 {
		nodes = on.nodes()
	}
	left := slices.DeleteFunc(slices.Clone(nodes), func(id string) bool { return banned[id] })
	if len(left) == 0 {
		return []string{noNode}
	}
	return left
}

// merge adds up the parts of one alloc.
func merge(parts []place.Usage) place.Usage {
	sum := parts[0]
	sum.Takes = slices.Clone(sum.Takes)
	for _, u := range parts[1:] {
		for _, t := range u.Takes {
			at := slices.IndexFunc(sum.Takes, func(have place.Take) bool { return have.GPU == t.GPU })
			if at < 0 {
				sum.Takes = append(sum.Takes, t)
				continue
			}
			sum.Takes[at].Milli += t.Milli
			sum.Takes[at].Slices += t.Slices
			sum.Takes[at].Replicas += t.Replicas
		}
	}
	slices.SortFunc(sum.Takes, func(a, b place.Take) int { return a.GPU - b.GPU })
	return sum
}
