// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"maps"
	"slices"
)

// FreeGPU is the free capacity of one GPU. Amounts are negative where the cluster
// holds more than there is.
type FreeGPU struct {
	Milli    int64 // compute without a guarantee on it
	Slices   int64
	Replicas int64
	Tasks    int64 // usages that hold a part
}

// Free is the free capacity of a node; GPUs are in the order of [Node.GPUs].
type Free struct {
	CPUMHz    int64
	MemoryMiB int64
	GPUs      []FreeGPU
}

// NodeIDs lists the nodes in alphabetical order.
func (s *Snapshot) NodeIDs() []string { return slices.Sorted(maps.Keys(s.Nodes)) }

// Node returns a node as it was last described.
func (s *Snapshot) Node(id string) (Node, bool) {
	n := s.Nodes[id]
	if n == nil {
		return Node{}, false
	}
	return n.Spec, true
}

// Free returns the free capacity of a node.
func (s *Snapshot) Free(id string) (Free, bool) { return s.FreeWithout(id, nil) }

// FreeWithout is Free once the usages that without selects have gone; nil selects none.
func (s *Snapshot) FreeWithout(id string, without func(*Usage) bool) (Free, bool) {
	n := s.Nodes[id]
	if n == nil {
		return Free{}, false
	}
	f := Free{CPUMHz: n.CPU, MemoryMiB: n.Memory, GPUs: make([]FreeGPU, len(n.Where))}
	for i, at := range n.Where {
		c := &at.Pool.GPUs[at.Index]
		f.GPUs[i] = FreeGPU{Milli: int64(c.Milli), Slices: int64(c.Slices), Replicas: int64(c.Replicas), Tasks: int64(c.Tasks)}
	}
	for _, u := range n.Holders {
		if without == nil || !without(u) {
			continue
		}
		f.CPUMHz, f.MemoryMiB = f.CPUMHz+u.CPUMHz, f.MemoryMiB+u.MemoryMiB
		for _, t := range u.Takes {
			g := &f.GPUs[t.GPU]
			g.Milli, g.Slices, g.Replicas, g.Tasks = g.Milli+t.Milli, g.Slices+t.Slices, g.Replicas+t.Replicas, g.Tasks-1
		}
	}
	return f, true
}

// Rest is work that would hold all that is free of the GPUs of a node; it takes nothing where nothing is.
func (s *Snapshot) Rest(id string) Usage {
	u := Usage{NodeID: id}
	free, _ := s.Free(id)
	for i, g := range free.GPUs {
		t := Take{GPU: i, Milli: max(0, g.Milli), Slices: max(0, g.Slices), Replicas: max(0, g.Replicas)}
		if t.Milli+t.Slices+t.Replicas > 0 {
			u.Takes = append(u.Takes, t)
		}
	}
	return u
}

// Usage returns a usage.
func (s *Snapshot) Usage(id string) (Usage, bool) {
	u := s.Usages[id]
	if u == nil {
		return Usage{}, false
	}
	return copied(u), true
}

// UsagesOn lists what holds a part of a node, by ID.
func (s *Snapshot) UsagesOn(id string) []Usage {
	n := s.Nodes[id]
	if n == nil {
		return nil
	}
	var out []Usage
	for _, u := range n.Holders {
		out = append(out, copied(u))
	}
	return out
}

func copied(u *Usage) Usage {
	out := *u
	out.Takes = slices.Clone(u.Takes)
	return out
}
