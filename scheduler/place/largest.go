// SPDX-License-Identifier: MPL-2.0

package place

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// Lot is a number of tasks that are to start together.
type Lot struct {
	Tasks   int
	Apart   bool              // each on a node of its own
	Without map[string]bool   // node IDs that are left out
	Pays    func(Charge) bool // whether all of it may cost so much; nil: it may
}

// Largest is the largest of some sizes, from 1, at which a lot of tasks would start now,
// and how many nodes have room for one of them; 0 where they would at none. Size must not
// ask for less as it grows, and may change only the request for GPUs.
//
// It costs one look at all nodes, and then one per halving of the sizes at those that could
// take the smallest; nodes in the same state are looked at once. Nothing of it is
// remembered.
func (p *Planner) Largest(lot *Lot, sizes int, size func(n int) Request) (n, nodes int) {
	if sizes < 1 || lot.Tasks < 1 {
		return 0, 0
	}
	first := size(1)
	if first.Fault() != "" {
		return 0, 0
	}
	sh := fit.NewShape(&first, p.snap)
	able := p.ableToTake(lot, sh)
	meets := sh.Meets // the conditions are the same for all sizes
	for low, high := 1, sizes; low <= high; {
		middle := (low + high) / 2
		r := size(middle)
		if on, tasks := p.takers(lot, &r, meets, able); tasks >= lot.Tasks {
			n, nodes, low = middle, on, middle+1
		} else {
			high = middle - 1
		}
	}
	return n, nodes
}

// like is a node, and how many are in the same state.
type like struct {
	node  *cluster.NodeState
	times int
}

// ableToTake lists the nodes that have room for one task of a shape.
func (p *Planner) ableToTake(lot *Lot, sh *fit.Shape) []like {
	var able []like
	known := map[int32]int{} // by class of nodes with one pool: the place in able
	for _, b := range p.snap.Pools {
		if b == nil || b != b.Node.Pools[0] || lot.Without[b.Node.Spec.ID] {
			continue
		}
		if !slices.ContainsFunc(b.Node.Pools, func(b *cluster.Pool) bool { return sh.Fit(p.snap, b) == fit.Fits }) {
			continue
		}
		if sh.Meets == nil && len(b.Node.Pools) == 1 {
			at, found := known[b.Class]
			if found {
				able[at].times++
				continue
			}
			known[b.Class] = len(able)
		}
		able = append(able, like{b.Node, 1})
	}
	return able
}

// takers counts the nodes that have room for a task, and the tasks for which there is room
// on all of them.
func (p *Planner) takers(lot *Lot, r *Request, meets map[*constraint.Device]bool, able []like) (nodes, tasks int) {
	if r.Fault() != "" {
		return 0, 0
	}
	sh := fit.NewShape(r, p.snap)
	sh.Meets = meets
	for _, n := range able {
		here := 0
		for _, b := range n.node.Pools {
			here += p.tasksOn(lot, sh, b)
		}
		if here == 0 {
			continue
		}
		if lot.Apart {
			here = 1
		}
		nodes += n.times
		tasks += n.times * sh.OnHost(n.node, here)
	}
	return nodes, tasks
}

// tasksOn is how many tasks of a shape the GPUs of a pool have room for.
func (p *Planner) tasksOn(lot *Lot, sh *fit.Shape, b *cluster.Pool) int {
	if b.Kind < 0 {
		return 0
	}
	nd := sh.Need(p.snap, b.Kind)
	if !nd.OK || lot.Pays != nil && !lot.Pays(cluster.ChargeOf(&p.snap.Kinds[b.Kind], nd.Take).Times(int64(sh.Req.GPUs*lot.Tasks))) {
		return 0
	}
	places := 0
	for i := range b.GPUs {
		if nd.Fits(&b.GPUs[i]) && sh.Suits(b, i) {
			if sh.Req.GPUs > 1 {
				places++ // each GPU of a task is another one
			} else {
				places += nd.Times(&b.GPUs[i])
			}
		}
	}
	return places / sh.Req.GPUs
}
