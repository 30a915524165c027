// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// nodes are Nomad's nodes.
type nodes struct {
	byID    map[string]*nomad.Node
	order   []string                       // their IDs, in order
	mig     []string                       // those with GPUs whose MIG layout follows demand, in order
	inParts []string                       // those with parts of GPUs, in order
	dcs     map[string]int                 // how many of them each datacenter has
	met     map[constraint.Constraint]bool // whether every one with GPUs meets it, as far as asked
}

func newNodes() *nodes {
	return &nodes{byID: map[string]*nomad.Node{}, dcs: map[string]int{}, met: map[constraint.Constraint]bool{}}
}

// put takes a node as it is now.
func (n *nodes) put(node *nomad.Node) {
	id := node.Plan.ID
	before := n.byID[id]
	if before == nil || !maps.Equal(before.Plan.Attributes, node.Plan.Attributes) || len(before.Plan.GPUs) != len(node.Plan.GPUs) {
		clear(n.met)
	}
	if before == nil {
		at, _ := slices.BinarySearch(n.order, id)
		n.order = slices.Insert(n.order, at, id)
	} else {
		n.leave(before.Plan.Datacenter)
	}
	n.byID[id] = node
	listed(&n.mig, id, len(node.MIG) > 0)
	listed(&n.inParts, id, slices.ContainsFunc(node.Plan.GPUs, func(g place.GPU) bool { return g.Profile != "" }))
	n.dcs[node.Plan.Datacenter]++
}

// remove forgets a node, if it is there.
func (n *nodes) remove(id string) {
	node := n.byID[id]
	if node == nil {
		return
	}
	at, _ := slices.BinarySearch(n.order, id)
	n.order = slices.Delete(n.order, at, at+1)
	listed(&n.mig, id, false)
	listed(&n.inParts, id, false)
	n.leave(node.Plan.Datacenter)
	delete(n.byID, id)
	clear(n.met)
}

// listed keeps a sorted list of the nodes that have something.
func listed(list *[]string, id string, has bool) {
	switch at, known := slices.BinarySearch(*list, id); {
	case has && !known:
		*list = slices.Insert(*list, at, id)
	case !has && known:
		*list = slices.Delete(*list, at, at+1)
	}
}

// leave counts a node of a datacenter less.
func (n *nodes) leave(dc string) {
	if n.dcs[dc]--; n.dcs[dc] == 0 {
		delete(n.dcs, dc)
	}
}

// Node is a node by its ID; nil: there is none.
func (n *nodes) Node(id string) *nomad.Node { return n.byID[id] }

// NodeIDs lists all nodes, in order. The list must not be changed, nor kept.
func (n *nodes) NodeIDs() []string { return n.order }

// MIGNodeIDs lists the nodes with GPUs whose MIG layout follows demand, in order. The list must not
// be changed, nor kept.
func (n *nodes) MIGNodeIDs() []string { return n.mig }

// PartNodeIDs lists the nodes whose GPUs are offered in parts of some profile, such as MIG instances, in
// order. The list must not be changed, nor kept.
func (n *nodes) PartNodeIDs() []string { return n.inParts }

// Datacenters lists those that have nodes, in order.
func (n *nodes) Datacenters() []string { return slices.Sorted(maps.Keys(n.dcs)) }

// EveryNodeMeets reports whether no node with GPUs is ruled out by a constraint.
func (n *nodes) EveryNodeMeets(c constraint.Constraint) bool {
	met, known := n.met[c]
	if !known {
		met = true
		for _, node := range n.byID {
			met = met && (len(node.Plan.GPUs) == 0 || c.OnNode(node.Plan.Attributes))
		}
		n.met[c] = met
	}
	return met
}

// admits reports whether a group may run on a node at all.
func (n *nodes) admits(node string, need *Need) bool {
	known := n.byID[node]
	return known != nil && need.Node.AdmittedBy(&known.Plan)
}
