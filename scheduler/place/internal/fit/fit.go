// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// Verdict is that a pool can take a task now, or why it cannot, now or ever.
type Verdict uint8

const (
	Fits Verdict = iota
	notEligible
	notFiltered
	neverKind
	neverDevice
	neverSize
	noCPU
	noMemory
	noGPU
)

// Fit decides whether a pool can take a shape now.
func (sh *Shape) Fit(s *cluster.Snapshot, b *cluster.Pool) Verdict {
	n := b.Node
	r := &sh.Req
	if r.CPUMHz > n.CPU {
		return noCPU
	}
	if r.MemoryMiB > n.Memory {
		return noMemory
	}
	if n.Spec.Ineligible {
		return notEligible
	}
	if sh.filtered && !r.AdmittedBy(&n.Spec) {
		return notFiltered
	}
	if r.GPUs == 0 {
		if b != n.Pools[0] {
			return neverKind // one pool stands for the node
		}
		return Fits
	}
	return sh.fitGPUs(s, b)
}

// Could decides whether a pool could take a shape if it were empty.
func (sh *Shape) Could(s *cluster.Snapshot, b *cluster.Pool) bool {
	n := b.Node
	r := &sh.Req
	if n.Spec.Ineligible || r.CPUMHz > n.Spec.CPUMHz || r.MemoryMiB > n.Spec.MemoryMiB {
		return false
	}
	if sh.filtered && !r.AdmittedBy(&n.Spec) {
		return false
	}
	if r.GPUs == 0 {
		return b == n.Pools[0]
	}
	return b.Kind >= 0 && sh.Need(s, b.Kind).OK && r.GPUs <= sh.suiting(b)
}

func (sh *Shape) fitGPUs(s *cluster.Snapshot, b *cluster.Pool) Verdict {
	if b.Kind < 0 {
		return neverKind
	}
	nd := sh.Need(s, b.Kind)
	if !nd.OK {
		return neverKind
	}
	switch all := sh.suiting(b); {
	case all == 0:
		return neverDevice
	case sh.Req.GPUs > all:
		return neverSize
	}
	if sh.freeGPUs(s, b) < sh.Req.GPUs {
		return noGPU
	}
	return Fits
}

// freeGPUs counts the GPUs of a pool that have what a shape needs of each, up to as many as it needs.
func (sh *Shape) freeGPUs(s *cluster.Snapshot, b *cluster.Pool) int {
	nd, found := sh.Need(s, b.Kind), 0
	for i := range b.GPUs {
		if nd.Fits(&b.GPUs[i]) && sh.Suits(b, i) {
			if found++; found == sh.Req.GPUs {
				break
			}
		}
	}
	return found
}

// Fits reports whether a GPU has room for the need now.
func (nd *Need) Fits(c *cluster.GPUState) bool {
	return c.Open && int64(c.Milli) >= nd.Take.Milli && int64(c.Slices) >= nd.Take.Slices &&
		int64(c.Replicas) >= nd.Take.Replicas && (!nd.Whole || c.Tasks == 0)
}

// AdmittedBy reports whether a request may run on a node at all, by its demands on
// the node itself: pool, datacenter, constraints.
func (r *Request) AdmittedBy(n *cluster.Node) bool {
	if len(r.Datacenters) > 0 && !slices.Contains(r.Datacenters, n.Datacenter) {
		return false
	}
	if len(r.Pools) > 0 && !slices.Contains(r.Pools, n.Pool) {
		return false
	}
	if len(r.Nodes) > 0 && !slices.Contains(r.Nodes, n.ID) {
		return false
	}
	return !slices.ContainsFunc(r.Constraints, func(c constraint.Constraint) bool { return !c.OnNode(n.Attributes) })
}

// Lacks reports that a class is short of something, without being exact.
func (sh *Shape) Lacks(s *cluster.Snapshot, cl *cluster.Class) bool {
	if sh.Req.CPUMHz > cl.CPU || sh.Req.MemoryMiB > cl.Memory {
		return true
	}
	if sh.Req.GPUs == 0 {
		return false
	}
	if cl.Kind < 0 {
		return true
	}
	nd := sh.Need(s, cl.Kind)
	return !nd.OK || cl.Share < nd.least
}

// Classes is what a shape's index follows.
func (sh *Shape) Classes(s *cluster.Snapshot) *cluster.Classes {
	if sh.apart {
		return &s.Each
	}
	return &s.States.Classes
}

// Times is how often a GPU holds a need that it has room for.
func (nd *Need) Times(c *cluster.GPUState) int {
	if nd.Whole {
		return 1
	}
	times := int64(cluster.GPUMilli)
	for _, of := range [...]struct{ free, takes int64 }{
		{int64(c.Milli), nd.Take.Milli}, {int64(c.Slices), nd.Take.Slices}, {int64(c.Replicas), nd.Take.Replicas},
	} {
		if of.takes > 0 {
			times = min(times, of.free/of.takes)
		}
	}
	return int(times)
}

// OnHost is for how many of some tasks a node has CPU and memory.
func (sh *Shape) OnHost(n *cluster.NodeState, tasks int) int {
	if sh.Req.CPUMHz > 0 {
		tasks = min(tasks, int(n.CPU/sh.Req.CPUMHz))
	}
	if sh.Req.MemoryMiB > 0 {
		tasks = min(tasks, int(n.Memory/sh.Req.MemoryMiB))
	}
	return tasks
}
