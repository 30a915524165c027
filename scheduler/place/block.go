package place

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
)

// Block is a device block that stands in a job already. Nomad serves it from one
// device group, and so does [Snapshot.Serves].
type Block struct {
	Device     string // type, vendor/type or vendor/type/name
	Count      int64  // of the group's instances
	Milli      int64  // compute that is promised of each GPU; 0: in proportion
	Conditions []constraint.Constraint
}

// Blocks is what one alloc of a job needs whose device blocks are written.
type Blocks struct {
	CPUMHz, MemoryMiB int64
	Devices           []Block
}

// Serves reports whether a node has room for an alloc. The usages that without
// selects count as gone; nil selects none.
func (s *Snapshot) Serves(nodeID string, a *Blocks, without func(*Usage) bool) bool {
	n := s.nodes[nodeID]
	if n == nil {
		return false
	}
	free := n.unused()
	if without != nil {
		for _, u := range n.holders {
			if without(u) {
				free.add(n, u)
			}
		}
	}
	if a.CPUMHz > free.cpu || a.MemoryMiB > free.memory {
		return false
	}
	return !slices.ContainsFunc(a.Devices, func(b Block) bool { return !free.take(n, &b) })
}

// Everything selects all usages, for [Snapshot.Serves].
func Everything(*Usage) bool { return true }

// Admits reports whether a request may run on a node at all, by what it asks of
// the node itself: pool, datacenter, constraints.
func (s *Snapshot) Admits(nodeID string, r *Request) bool {
	n := s.nodes[nodeID]
	return n != nil && admits(&n.spec, r)
}

// unused is what a node has free, per GPU in the node's order.
type unused struct {
	cpu, memory int64
	cells       []cell
}

func (n *nodeState) unused() unused {
	free := unused{cpu: n.cpu, memory: n.memory, cells: make([]cell, len(n.where))}
	for i, at := range n.where {
		free.cells[i] = at.bank.cells[at.cell]
	}
	return free
}

// add frees what a usage holds.
func (f *unused) add(n *nodeState, u *Usage) {
	f.cpu += u.CPUMHz
	f.memory += u.MemoryMiB
	for _, t := range u.Takes {
		c := &f.cells[t.GPU]
		c.milli += int32(t.Milli)
		c.slices += int32(t.Slices)
		c.replicas += int32(t.Replicas)
		c.tasks--
	}
}

// instances is how many of Nomad's instances a GPU has free for a block, whose
// compute it must have too.
func (c *cell) instances(g *GPU, b *Block) int64 {
	if !c.open || int64(c.milli) < b.Milli {
		return 0
	}
	switch g.Mode {
	case gpu.ModeSlice:
		if b.Milli == 0 && int64(c.milli) < b.Count*gpuMilli/g.Slices { // it goes with the slices
			return 0
		}
		return int64(c.slices)
	case gpu.ModeShared:
		return int64(c.replicas)
	}
	if c.tasks > 0 {
		return 0
	}
	return 1
}

// take takes a block out of what is free: from the device group that suits and
// has the least that is enough.
func (f *unused) take(n *nodeState, b *Block) bool {
	have := map[*constraint.Device]int64{}
	var order []*constraint.Device
	for i := range n.spec.GPUs {
		g := &n.spec.GPUs[i]
		if g.Device == nil {
			continue
		}
		if _, seen := have[g.Device]; !seen {
			order = append(order, g.Device)
		}
		have[g.Device] += f.cells[i].instances(g, b)
	}
	var best *constraint.Device
	for _, d := range order {
		if d.Named(b.Device) && d.Meets(b.Conditions) && have[d] >= b.Count && (best == nil || have[d] < have[best]) {
			best = d
		}
	}
	if best == nil {
		return false
	}
	left := b.Count
	for i := range n.spec.GPUs {
		g := &n.spec.GPUs[i]
		if g.Device == best && left > 0 {
			left -= f.cells[i].give(g, b, min(left, f.cells[i].instances(g, b)))
		}
	}
	return true
}

// give takes so many instances off a GPU.
func (c *cell) give(g *GPU, b *Block, count int64) int64 {
	if count <= 0 {
		return 0
	}
	milli := b.Milli
	switch g.Mode {
	case gpu.ModeSlice:
		c.slices -= int32(count)
		if milli == 0 {
			milli = count * gpuMilli / g.Slices
		}
	case gpu.ModeShared:
		c.replicas -= int32(count)
	default:
		milli = gpuMilli
	}
	c.milli -= int32(milli)
	c.tasks++
	return count
}
