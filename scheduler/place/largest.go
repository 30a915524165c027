package place

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
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
// ask for less as it grows, and may change only what is asked of GPUs.
//
// It costs one look at all nodes, and then one per halving of the sizes at those that could
// take the smallest, of which such in the same state are looked at once. Nothing of it is
// remembered.
func (p *Planner) Largest(lot *Lot, sizes int, size func(n int) Request) (n, nodes int) {
	if sizes < 1 || lot.Tasks < 1 {
		return 0, 0
	}
	first := size(1)
	if first.Fault() != "" {
		return 0, 0
	}
	sh := newShape(&first, p.snap)
	able := p.ableToTake(lot, sh)
	meets := sh.meets // the conditions are the same for all sizes
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
	node  *nodeState
	times int
}

// ableToTake lists the nodes that have room for one task of a shape.
func (p *Planner) ableToTake(lot *Lot, sh *Shape) []like {
	var able []like
	known := map[int32]int{} // by class of nodes with one pool: the place in able
	for _, b := range p.snap.pools {
		if b == nil || b != b.node.pools[0] || lot.Without[b.node.spec.ID] {
			continue
		}
		if !slices.ContainsFunc(b.node.pools, func(b *gpuPool) bool { return sh.fit(p.snap, b) == fitsNow }) {
			continue
		}
		if sh.meets == nil && len(b.node.pools) == 1 {
			at, found := known[b.class]
			if found {
				able[at].times++
				continue
			}
			known[b.class] = len(able)
		}
		able = append(able, like{b.node, 1})
	}
	return able
}

// takers counts the nodes that have room for a task, and the tasks for which there is room
// on all of them.
func (p *Planner) takers(lot *Lot, r *Request, meets map[*constraint.Device]bool, able []like) (nodes, tasks int) {
	if r.Fault() != "" {
		return 0, 0
	}
	sh := newShape(r, p.snap)
	sh.meets = meets
	for _, n := range able {
		here := 0
		for _, b := range n.node.pools {
			here += p.tasksOn(lot, sh, b)
		}
		if here == 0 {
			continue
		}
		if lot.Apart {
			here = 1
		}
		nodes += n.times
		tasks += n.times * sh.onHost(n.node, here)
	}
	return nodes, tasks
}

// tasksOn is how many tasks of a shape the GPUs of a pool have room for.
func (p *Planner) tasksOn(lot *Lot, sh *Shape, b *gpuPool) int {
	if b.kind < 0 {
		return 0
	}
	nd := sh.need(p.snap, b.kind)
	if !nd.ok || lot.Pays != nil && !lot.Pays(chargeOf(&p.snap.kinds[b.kind], nd.take).Times(int64(sh.req.GPUs*lot.Tasks))) {
		return 0
	}
	places := 0
	for i := range b.gpus {
		if nd.fits(&b.gpus[i]) && sh.suits(b, i) {
			if sh.req.GPUs > 1 {
				places++ // each GPU of a task is another one
			} else {
				places += nd.times(&b.gpus[i])
			}
		}
	}
	return places / sh.req.GPUs
}

// onHost is for how many of some tasks a node has CPU and memory.
func (sh *Shape) onHost(n *nodeState, tasks int) int {
	if sh.req.CPUMHz > 0 {
		tasks = min(tasks, int(n.cpu/sh.req.CPUMHz))
	}
	if sh.req.MemoryMiB > 0 {
		tasks = min(tasks, int(n.memory/sh.req.MemoryMiB))
	}
	return tasks
}
