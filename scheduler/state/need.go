// SPDX-License-Identifier: MPL-2.0

package state

import (
	"encoding/json"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Need is what a group whose device blocks stand asks of a node, and what one of
// its allocs needs there.
type Need struct {
	Node  place.Request // only what bounds the node
	Alloc place.Blocks
}

// Times is the need of a number of allocs together on one node.
func (n *Need) Times(allocs int) *Need {
	all := Need{Node: n.Node, Alloc: n.Alloc}
	all.Alloc.CPUMHz, all.Alloc.MemoryMiB = n.Alloc.CPUMHz*int64(allocs), n.Alloc.MemoryMiB*int64(allocs)
	all.Alloc.Devices = slices.Repeat(n.Alloc.Devices, allocs)
	return &all
}

// name names all that decides on which nodes there is room for a need.
func (n *Need) name() string {
	text, err := json.Marshal(struct {
		Nodes, Pools, Datacenters []string
		Constraints               []constraint.Constraint
		Alloc                     place.Blocks
	}{n.Node.Nodes, n.Node.Pools, n.Node.Datacenters, n.Node.Constraints, n.Alloc})
	if err != nil { // text and numbers always marshal
		return ""
	}
	return string(text)
}
