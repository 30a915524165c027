// SPDX-License-Identifier: MPL-2.0

package cluster

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
	Or         []Block // what will do as well, in order, where there is no room for it
}

// Blocks is what one alloc of a job needs whose device blocks are written.
type Blocks struct {
	CPUMHz, MemoryMiB int64
	Devices           []Block
}

// Serves reports whether a node has room for an alloc. The usages that without
// selects count as gone; nil selects none.
func (s *Snapshot) Serves(nodeID string, a *Blocks, without func(*Usage) bool) bool {
	n := s.Nodes[nodeID]
	if n == nil {
		return false
	}
	free := n.unused()
	if without != nil {
		for _, u := range n.Holders {
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

// unused is what a node has free, per GPU in the node's order.
type unused struct {
	cpu, memory int64
	gpus        []GPUState
}

func (n *NodeState) unused() unused {
	free := unused{cpu: n.CPU, memory: n.Memory, gpus: make([]GPUState, len(n.Where))}
	for i, at := range n.Where {
		free.gpus[i] = at.Pool.GPUs[at.Index]
	}
	return free
}

// add frees what a usage holds.
func (f *unused) add(n *NodeState, u *Usage) {
	f.cpu += u.CPUMHz
	f.memory += u.MemoryMiB
	for _, t := range u.Takes {
		c := &f.gpus[t.GPU]
		c.Milli += int32(t.Milli)
		c.Slices += int32(t.Slices)
		c.Replicas += int32(t.Replicas)
		c.Tasks--
	}
}

// instances is how many of Nomad's instances a GPU has free for a block, whose
// compute it must have too.
func (c *GPUState) instances(g *GPU, b *Block) int64 {
	if !c.Open || int64(c.Milli) < b.Milli {
		return 0
	}
	switch g.Mode {
	case gpu.ModeSlice:
		if b.Milli == 0 && int64(c.Milli) < b.Count*GPUMilli/g.Slices { // it goes with the slices
			return 0
		}
		return int64(c.Slices)
	case gpu.ModeShared:
		return int64(c.Replicas)
	}
	if c.Tasks > 0 || !g.named(b.Conditions) {
		return 0
	}
	return 1
}

// named reports whether a whole GPU, whose ID is its instance's, is among the
// instances that conditions name.
func (g *GPU) named(conditions []constraint.Constraint) bool {
	return !slices.ContainsFunc(conditions, func(c constraint.Constraint) bool { return !c.OnInstance(g.Device, g.ID) })
}

// take takes a block out of the free instances, or the first of its alternatives that is there.
func (f *unused) take(n *NodeState, b *Block) bool {
	return f.takeOne(n, b) || slices.ContainsFunc(b.Or, func(or Block) bool { return f.takeOne(n, &or) })
}

// takeOne takes a block from the device group that suits and has the least that is enough.
func (f *unused) takeOne(n *NodeState, b *Block) bool {
	have := map[*constraint.Device]int64{}
	var order []*constraint.Device
	for i := range n.Spec.GPUs {
		g := &n.Spec.GPUs[i]
		if g.Device == nil {
			continue
		}
		if _, seen := have[g.Device]; !seen {
			order = append(order, g.Device)
		}
		have[g.Device] += f.gpus[i].instances(g, b)
	}
	var best *constraint.Device
	for _, d := range order {
		if have[d] >= b.Count && (best == nil || have[d] < have[best]) && d.Named(b.Device) && d.Meets(b.Conditions) { // the dear ones last
			best = d
		}
	}
	if best == nil {
		return false
	}
	left := b.Count
	for i := range n.Spec.GPUs {
		g := &n.Spec.GPUs[i]
		if g.Device == best && left > 0 {
			left -= f.gpus[i].give(g, b, min(left, f.gpus[i].instances(g, b)))
		}
	}
	return true
}

// give takes count instances off a GPU.
func (c *GPUState) give(g *GPU, b *Block, count int64) int64 {
	if count <= 0 {
		return 0
	}
	milli := b.Milli
	switch g.Mode {
	case gpu.ModeSlice:
		c.Slices -= int32(count)
		if milli == 0 {
			milli = count * GPUMilli / g.Slices
		}
	case gpu.ModeShared:
		c.Replicas -= int32(count)
	default:
		milli = GPUMilli
	}
	c.Milli -= int32(milli)
	c.Tasks++
	return count
}
