// SPDX-License-Identifier: MPL-2.0

package state

import (
	"errors"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// books are the shares held or promised on the nodes, and the planners that work with them.
type books struct {
	nodes    *nodes
	jobs     *jobs
	snap     *place.Snapshot
	plan     *place.Planner
	idle     *place.Snapshot // the same nodes with nothing on them
	idlePlan *place.Planner
	seats    seats           // of the nodes, and where something changed
	flagged  map[string]bool // allocs that are booked as idle
	epoch    uint64          // grows with every change of what fits where
}

func newBooks(n *nodes, j *jobs) *books {
	return &books{nodes: n, jobs: j, snap: place.NewSnapshot(), idle: place.NewSnapshot(), seats: newSeats(), flagged: map[string]bool{}}
}

// planWith makes planners, which have learned nothing yet.
func (b *books) planWith(c *config.Placement) {
	turnover := 1.0
	if b.plan != nil {
		turnover = b.plan.Turnover()
	}
	b.plan = place.NewPlanner(b.snap, c.Policy, c.Weights)
	b.plan.ExpectEnds(turnover)
	b.idlePlan = place.NewPlanner(b.idle, place.PolicyPack, c.Weights)
}

// addNode opens an account for a node.
func (b *books) addNode(n place.Node) error {
	idle := n
	idle.Ineligible, idle.GPUs = false, healthy(n.GPUs)
	return errors.Join(b.snap.AddNode(n), b.idle.AddNode(idle))
}

// healthy is the GPUs as they would be with nothing wrong.
func healthy(gpus []place.GPU) []place.GPU {
	out := slices.Clone(gpus)
	for i := range out {
		out[i].Unhealthy, out[i].Cordoned, out[i].SurplusMilli = false, false, 0
	}
	return out
}

// removeNode closes the account of a node that nothing is booked on.
func (b *books) removeNode(id string) error {
	_, errSnap := b.snap.RemoveNode(id)
	_, errIdle := b.idle.RemoveNode(id)
	return errors.Join(errSnap, errIdle)
}

// enter books a usage. One of a node that is not known is booked once it is.
func (b *books) enter(u *place.Usage) error {
	if b.nodes.Node(u.NodeID) == nil {
		return nil
	}
	b.epoch++
	b.seats.touch(u.NodeID)
	if u.Idle {
		b.flagged[u.ID] = true
	}
	return b.snap.Observe(*u)
}

// strike takes the usage with an ID off the books, if there is one.
func (b *books) strike(id string) error {
	u, booked := b.snap.Usage(id)
	if !booked {
		return nil
	}
	b.epoch++
	b.seats.touch(u.NodeID)
	delete(b.flagged, id)
	_, err := b.snap.Release(id)
	return err
}

// Epoch grows with every change of what fits where.
func (b *books) Epoch() uint64 { return b.epoch }

// Usage is the usage booked under an ID.
func (b *books) Usage(id string) (place.Usage, bool) { return b.snap.Usage(id) }

// UsagesOn lists the usages booked on a node.
func (b *books) UsagesOn(node string) []place.Usage { return b.snap.UsagesOn(node) }

// Charge is what a queue pays for GPUs of a node.
func (b *books) Charge(node string, takes []place.Take) place.Charge {
	return b.snap.Charge(node, takes)
}

// Serves reports whether a node has room for an alloc, whether it takes work or
// not. What without selects counts as gone.
func (b *books) Serves(node string, n *Need, without func(*place.Usage) bool) bool {
	return b.snap.Serves(node, &n.Alloc, without)
}

// ServesNow reports whether a node takes work, may run a group and has room for an
// alloc of it. What without selects counts as gone.
func (b *books) ServesNow(node string, n *Need, without func(*place.Usage) bool) bool {
	known := b.nodes.Node(node)
	return known != nil && !known.Plan.Ineligible && b.nodes.admits(node, n) && b.Serves(node, n, without)
}

// fit is how well a node can take an alloc.
func (b *books) fit(node string, n *Need) Fit {
	known := b.nodes.Node(node)
	switch {
	case known == nil || !b.nodes.admits(node, n):
		return FitsNever
	case !known.Plan.Ineligible && b.Serves(node, n, nil):
		return FitsNow
	case !b.Serves(node, n, place.Everything):
		return FitsNever
	case known.Plan.Ineligible:
		return FitsWhenBack
	}
	return FitsLater
}

// Planner plans on the cluster with all booked usages. A change of its snapshot is taken back before
// the transaction ends.
func (tx *Tx) Planner() *place.Planner { return tx.Capacity.books.plan }

// IdlePlanner plans on the same nodes with nothing on them and nothing wrong: what could ever fit.
func (tx *Tx) IdlePlanner() *place.Planner { return tx.Capacity.books.idlePlan }

// Try runs f, which leaves everything as it was: a search that was in vain before
// still is.
func (tx *Tx) Try(f func()) {
	epoch := tx.Capacity.books.epoch
	f()
	tx.Capacity.books.epoch = epoch
}
