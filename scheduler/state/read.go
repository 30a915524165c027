package state

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Snapshot is the cluster with everything that is held or promised. Whoever changes
// it puts it back before the transaction ends.
func (tx *Tx) Snapshot() *place.Snapshot { return tx.snap }

// Idle is the same nodes with nothing on them and nothing wrong: what could ever
// fit.
func (tx *Tx) Idle() *place.Snapshot { return tx.idle }

// Planner plans on the snapshot.
func (tx *Tx) Planner() *place.Planner { return tx.plan }

// IdlePlanner plans on the idle cluster.
func (tx *Tx) IdlePlanner() *place.Planner { return tx.idlePlan }

// Usage is what is booked under an ID.
func (r *Reader) Usage(id string) (place.Usage, bool) { return r.snap.Usage(id) }

// UsagesOn lists what is booked on a node.
func (r *Reader) UsagesOn(node string) []place.Usage { return r.snap.UsagesOn(node) }

// Charge is what a queue pays for GPUs of a node.
func (r *Reader) Charge(node string, takes []place.Take) place.Charge {
	return r.snap.Charge(node, takes)
}

// Need is what a group whose device blocks stand asks of a node, and what one of
// its allocs needs there.
type Need struct {
	Node  place.Request // only what bounds the node
	Alloc place.Blocks
}

// Times is what so many allocs need together on one node.
func (n *Need) Times(allocs int) *Need {
	all := Need{Node: n.Node, Alloc: n.Alloc}
	all.Alloc.CPUMHz, all.Alloc.MemoryMiB = n.Alloc.CPUMHz*int64(allocs), n.Alloc.MemoryMiB*int64(allocs)
	all.Alloc.Devices = slices.Repeat(n.Alloc.Devices, allocs)
	return &all
}

// Serves reports whether a node has room for an alloc, whether it takes work or
// not. What without selects counts as gone.
func (r *Reader) Serves(node string, n *Need, without func(*place.Usage) bool) bool {
	return r.snap.Serves(node, &n.Alloc, without)
}

// ServesNow reports whether a node takes work, may run a group and has room for an
// alloc of it. What without selects counts as gone.
func (r *Reader) ServesNow(node string, n *Need, without func(*place.Usage) bool) bool {
	known := r.nodes.byID[node]
	return known != nil && !known.Plan.Ineligible && r.Admits(node, n) && r.Serves(node, n, without)
}

// CouldServe reports whether a node could take an alloc if it was empty.
func (r *Reader) CouldServe(node string, n *Need) bool {
	return r.Admits(node, n) && r.Serves(node, n, place.Everything)
}
