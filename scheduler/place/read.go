package place

import (
	"maps"
	"slices"
)

// FreeGPU is what is free on one GPU. Amounts are negative where the cluster
// holds more than there is.
type FreeGPU struct {
	Milli    int64 // compute without a guarantee on it
	Slices   int64
	Replicas int64
	Tasks    int64 // usages that hold a part
}

// Free is what is free on a node; GPUs are in the order of [Node.GPUs].
type Free struct {
	CPUMHz    int64
	MemoryMiB int64
	GPUs      []FreeGPU
}

// NodeIDs lists the nodes in alphabetical order.
func (s *Snapshot) NodeIDs() []string { return slices.Sorted(maps.Keys(s.nodes)) }

// Node returns a node as it was last described.
func (s *Snapshot) Node(id string) (Node, bool) {
	n := s.nodes[id]
	if n == nil {
		return Node{}, false
	}
	return n.spec, true
}

// Free returns what is free on a node.
func (s *Snapshot) Free(id string) (Free, bool) {
	n := s.nodes[id]
	if n == nil {
		return Free{}, false
	}
	f := Free{CPUMHz: n.cpu, MemoryMiB: n.memory, GPUs: make([]FreeGPU, len(n.where))}
	for i, at := range n.where {
		c := &at.pool.gpus[at.index]
		f.GPUs[i] = FreeGPU{Milli: int64(c.milli), Slices: int64(c.slices), Replicas: int64(c.replicas), Tasks: int64(c.tasks)}
	}
	return f, true
}

// Usage returns a usage.
func (s *Snapshot) Usage(id string) (Usage, bool) {
	u := s.usages[id]
	if u == nil {
		return Usage{}, false
	}
	return copied(u), true
}

// UsagesOn lists what holds a part of a node, by ID.
func (s *Snapshot) UsagesOn(id string) []Usage {
	n := s.nodes[id]
	if n == nil {
		return nil
	}
	var out []Usage
	for _, u := range n.holders {
		out = append(out, copied(u))
	}
	return out
}

func copied(u *Usage) Usage {
	out := *u
	out.Takes = slices.Clone(u.Takes)
	return out
}
