package decide

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// placedAlloc is one alloc, placed: all its parts on one node.
type placedAlloc struct {
	node  string
	score int64
	parts []place.Usage // per part
	usage place.Usage   // together
}

// scratch is where allocs are placed on trial: the cluster as it is, or idle.
type scratch struct {
	snap  *place.Snapshot
	plan  *place.Planner
	nodes []string // all, in order
}

func clusterScratch(tx *state.Tx) scratch { return scratch{tx.Snapshot(), tx.Planner(), tx.NodeIDs()} }

func idleScratch(tx *state.Tx) scratch { return scratch{tx.Idle(), tx.IdlePlanner(), tx.NodeIDs()} }

// tries bounds how many nodes are tried for an alloc of several parts.
const tries = 8

// place finds the node for one alloc. It books nothing.
func (on scratch) place(parts []part) (placedAlloc, error) {
	if len(parts) == 1 {
		p, err := on.first(&parts[0])
		if err != nil {
			return placedAlloc{}, err
		}
		return placedAlloc{node: p.NodeID, score: p.Score, parts: []place.Usage{p.Usage}, usage: p.Usage}, nil
	}
	banned := map[string]bool{}
	for range tries {
		u, at, err := on.together(parts, banned)
		if err == nil {
			return u, nil
		}
		if at == "" || !errors.Is(err, place.ErrNoRoom) {
			return placedAlloc{}, err
		}
		banned[at] = true
	}
	return placedAlloc{}, fmt.Errorf("place %d device blocks on one node: %w", len(parts), place.ErrNoRoom)
}

// first places the first request of a part that has room.
func (on scratch) first(p *part) (found place.Placement, err error) {
	placed := false
	p.each(func(r *place.Request) {
		if placed {
			return
		}
		pl, why := on.seated(r)
		switch {
		case why == nil:
			found, err, placed = pl, nil, true
		case err == nil || errors.Is(err, place.ErrNoRoom):
			err = why
		}
	})
	return found, err
}

// together places the first part where it likes best and the others beside
// it. On failure it returns the node that did not do.
func (on scratch) together(parts []part, banned map[string]bool) (u placedAlloc, at string, err error) {
	var applied []string
	defer func() {
		for _, id := range applied {
			_, undo := on.snap.Release(id)
			err = errors.Join(err, undo)
		}
	}()
	for _, p := range parts {
		if u.node != "" {
			p = p.on([]string{u.node})
		} else if len(banned) > 0 {
			p = p.on(on.without(p.req.Nodes, banned))
		}
		found, err := on.first(&p)
		if err != nil {
			return placedAlloc{}, u.node, err
		}
		u.node, u.score = found.NodeID, u.score+found.Score
		u.parts = append(u.parts, found.Usage)
		if err := on.snap.Apply(found.Usage); err != nil {
			return placedAlloc{}, u.node, err
		}
		applied = append(applied, found.Usage.ID)
	}
	u.usage = merge(u.parts)
	return u, u.node, nil
}

// without lists the nodes that are not banned.
func (on scratch) without(nodes []string, banned map[string]bool) []string {
	if len(nodes) == 0 {
		nodes = on.nodes
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
