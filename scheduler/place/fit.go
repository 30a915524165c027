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
func (sh *Shape) fit(s *Snapshot, b *gpuPool) reason {
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
	if sh.filtered && !r.AdmittedBy(&n.spec) {
		return notFiltered
	}
	if r.GPUs == 0 {
		if b != n.pools[0] {
			return neverKind // one pool stands for the node
		}
		return fitsNow
	}
	return sh.fitGPUs(s, b)
}

// could decides whether a pool could take a shape if it were empty.
func (sh *Shape) could(s *Snapshot, b *gpuPool) bool {
	n := b.node
	r := &sh.req
	if n.spec.Ineligible || r.CPUMHz > n.spec.CPUMHz || r.MemoryMiB > n.spec.MemoryMiB {
		return false
	}
	if sh.filtered && !r.AdmittedBy(&n.spec) {
		return false
	}
	if r.GPUs == 0 {
		return b == n.pools[0]
	}
	return b.kind >= 0 && sh.need(s, b.kind).ok && r.GPUs <= sh.suiting(b)
}

func (sh *Shape) fitGPUs(s *Snapshot, b *gpuPool) reason {
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
	if sh.free(s, b) < sh.req.GPUs {
		return noGPU
	}
	return fitsNow
}

// free counts the GPUs of a pool that have what a shape needs of each, up to as many as it needs.
func (sh *Shape) free(s *Snapshot, b *gpuPool) int {
	nd, found := sh.need(s, b.kind), 0
	for i := range b.gpus {
		if nd.fits(&b.gpus[i]) && sh.suits(b, i) {
			if found++; found == sh.req.GPUs {
				break
			}
		}
	}
	return found
}

// fits reports whether a GPU has room for the need now.
func (nd *need) fits(c *gpuState) bool {
	return c.open && int64(c.milli) >= nd.take.Milli && int64(c.slices) >= nd.take.Slices &&
		int64(c.replicas) >= nd.take.Replicas && (!nd.whole || c.tasks == 0)
}

// AdmittedBy reports whether a request may run on a node at all, by what it asks of
// the node itself: pool, datacenter, constraints.
func (r *Request) AdmittedBy(n *Node) bool {
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

// lacks reports that a class is short of something, without being exact.
func (sh *Shape) lacks(s *Snapshot, cl *poolClass) bool {
	if sh.req.CPUMHz > cl.cpu || sh.req.MemoryMiB > cl.memory {
		return true
	}
	if sh.req.GPUs == 0 {
		return false
	}
	if cl.kind < 0 {
		return true
	}
	nd := sh.need(s, cl.kind)
	return !nd.ok || cl.share < nd.least
}

// classes is what a shape's index follows.
func (sh *Shape) classes(s *Snapshot) *classList {
	if sh.apart {
		return &s.each
	}
	return &s.states.classList
}

// times is how often a GPU holds a need that it has room for.
func (nd *need) times(c *gpuState) int {
	if nd.whole {
		return 1
	}
	times := int64(gpuMilli)
	for _, of := range [...]struct{ free, takes int64 }{
		{int64(c.milli), nd.take.Milli}, {int64(c.slices), nd.take.Slices}, {int64(c.replicas), nd.take.Replicas},
	} {
		if of.takes > 0 {
			times = min(times, of.free/of.takes)
		}
	}
	return int(times)
}
