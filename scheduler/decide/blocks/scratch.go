// SPDX-License-Identifier: MPL-2.0

package blocks

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Placed is one alloc, placed: all its parts on one node.
type Placed struct {
	Node  string
	Score int64
	Each  []place.Usage // per part
	Usage place.Usage   // together
}

// Scratch is where allocs are placed on trial: [Cluster] or [Idle].
type Scratch struct {
	plan  *place.Planner
	nodes []string // all, in order
}

// Cluster is the cluster with all booked and assumed usages.
func Cluster(tx *state.Tx) Scratch { return Scratch{tx.Planner(), tx.Cluster.NodeIDs()} }

// Idle is the cluster as if nothing ran in it.
func Idle(tx *state.Tx) Scratch { return Scratch{tx.IdlePlanner(), tx.Cluster.NodeIDs()} }

// Tries bounds how many nodes are tried for an alloc of several parts.
const Tries = 8

// Place finds the node for one alloc. It books nothing.
func (on Scratch) Place(parts []Part) (Placed, error) {
	if len(parts) == 1 {
		p, err := on.first(&parts[0])
		if err != nil {
			return Placed{}, err
		}
		return Placed{Node: p.NodeID, Score: p.Score, Each: []place.Usage{p.Usage}, Usage: p.Usage}, nil
	}
	banned := map[string]bool{}
	for range Tries {
		u, at, err := on.together(parts, banned)
		if err == nil {
			return u, nil
		}
		if at == "" || !errors.Is(err, place.ErrNoRoom) {
			return Placed{}, err
		}
		banned[at] = true
	}
	return Placed{}, fmt.Errorf("place %d device blocks on one node: %w", len(parts), place.ErrNoRoom)
}

// first places the first request of a part that has room.
func (on Scratch) first(p *Part) (found place.Placement, err error) {
	placed := false
	p.Alternatives(func(r *place.Request) {
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
func (on Scratch) together(parts []Part, banned map[string]bool) (u Placed, at string, err error) {
	var applied []string
	defer func() {
		for _, id := range applied {
			_, undo := on.plan.Snapshot().Release(id)
			err = errors.Join(err, undo)
		}
	}()
	for _, p := range parts {
		if u.Node != "" {
			p = p.On([]string{u.Node})
		} else if len(banned) > 0 {
			p = p.On(on.Without(p.Req.Nodes, banned))
		}
		found, err := on.first(&p)
		if err != nil {
			return Placed{}, u.Node, err
		}
		u.Node, u.Score = found.NodeID, u.Score+found.Score
		u.Each = append(u.Each, found.Usage)
		if err := on.plan.Snapshot().Apply(found.Usage); err != nil {
			return Placed{}, u.Node, err
		}
		applied = append(applied, found.Usage.ID)
	}
	u.Usage = Merge(u.Each)
	return u, u.Node, nil
}

// Without lists the nodes that are not banned.
func (on Scratch) Without(nodes []string, banned map[string]bool) []string {
	if len(nodes) == 0 {
		nodes = on.nodes
	}
	left := slices.DeleteFunc(slices.Clone(nodes), func(id string) bool { return banned[id] })
	if len(left) == 0 {
		return []string{NoNode}
	}
	return left
}

// Merge adds up the parts of one alloc.
func Merge(parts []place.Usage) place.Usage {
	sum := parts[0]
	sum.Takes = slices.Clone(sum.Takes)
	for _, u := range parts[1:] {
		for _, t := range u.Takes {
			at := slices.IndexFunc(sum.Takes, func(have place.Take) bool { return have.GPU == t.GPU })
			if at < 0 {
				sum.Takes = append(sum.Takes, t)
				continue
			}
			have := &sum.Takes[at]
			if have.Expected > 0 || t.Expected > 0 {
				have.Expected = min(max(have.Expected, have.Milli)+max(t.Expected, t.Milli), gpu.MilliPerGPU)
			}
			have.Milli += t.Milli
			have.Slices += t.Slices
			have.Replicas += t.Replicas
		}
	}
	slices.SortFunc(sum.Takes, func(a, b place.Take) int { return a.GPU - b.GPU })
	return sum
}
