package place

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
)

// reason is why a pool cannot take a task now, or ever.
type reason uint8

const (
	fitsNow reason = iota
	notEligible
	notFiltered
	neverKind
	neverDevice
	neverSize
	noCPU
	noMemory
	noGPU
)

// fit decides whether a pool can take a shape now.
func (s *Snapshot) fit(sh *shape, b *gpuPool) reason {
	n := b.node
	r := &sh.req
	if r.CPUMHz > n.cpu {
		return noCPU
	}
	if r.MemoryMiB > n.memory {
		return noMemory
	}
	if n.spec.Ineligible {
		return notEligible
	}
	if sh.filtered && !admits(&n.spec, r) {
		return notFiltered
	}
	if r.GPUs == 0 {
		if b != n.pools[0] {
			return neverKind // one pool stands for the node
		}
		return fitsNow
	}
	return s.fitGPUs(sh, b)
}

// could decides whether a pool could take a shape if it were empty.
func (s *Snapshot) could(sh *shape, b *gpuPool) bool {
	n := b.node
	r := &sh.req
	if n.spec.Ineligible || r.CPUMHz > n.spec.CPUMHz || r.MemoryMiB > n.spec.MemoryMiB {
		return false
	}
	if sh.filtered && !admits(&n.spec, r) {
		return false
	}
	if r.GPUs == 0 {
		return b == n.pools[0]
	}
	return b.kind >= 0 && sh.need(s, b.kind).ok && r.GPUs <= sh.suiting(b)
}

func (s *Snapshot) fitGPUs(sh *shape, b *gpuPool) reason {
	if b.kind < 0 {
		return neverKind
	}
	nd := sh.need(s, b.kind)
	if !nd.ok {
		return neverKind
	}
	switch all := sh.suiting(b); {
	case all == 0:
		return neverDevice
	case sh.req.GPUs > all:
		return neverSize
	}
	if s.free(sh, b) < sh.req.GPUs {
		return noGPU
	}
	return fitsNow
}

// free counts the GPUs of a pool that have what a shape needs of each, up to as many as it needs.
func (s *Snapshot) free(sh *shape, b *gpuPool) int {
	nd, found := sh.need(s, b.kind), 0
	for i := range b.gpus {
		if b.gpus[i].holds(nd) && sh.suits(b, i) {
			if found++; found == sh.req.GPUs {
				break
			}
		}
	}
	return found
}

// holds reports whether the GPU has room for the need now.
func (c *gpuState) holds(nd *need) bool {
	return c.open && int64(c.milli) >= nd.take.Milli && int64(c.slices) >= nd.take.Slices &&
		int64(c.replicas) >= nd.take.Replicas && (!nd.whole || c.tasks == 0)
}

// admits checks what a request asks of the node itself.
func admits(n *Node, r *Request) bool {
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
