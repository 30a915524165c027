package place

import "slices"

// room is a copy of what a node has free, to try on what would fit.
type room struct {
	node        *nodeState
	cpu, memory int64
	gpus        [][]gpuState // by pool
}

func newRoom(n *nodeState) room {
	r := room{node: n, cpu: n.cpu, memory: n.memory}
	for _, b := range n.pools {
		r.gpus = append(r.gpus, slices.Clone(b.gpus))
	}
	return r
}

func (r *room) copy() room {
	out := *r
	out.gpus = make([][]gpuState, len(r.gpus))
	for i := range r.gpus {
		out.gpus[i] = slices.Clone(r.gpus[i])
	}
	return out
}

// add frees (sign 1) or takes (sign -1) what a usage holds.
func (r *room) add(u *Usage, sign int64) {
	r.cpu += sign * u.CPUMHz
	r.memory += sign * u.MemoryMiB
	for _, t := range u.Takes {
		at := r.node.where[t.GPU]
		c := &r.gpus[slices.Index(r.node.pools, at.pool)][at.index]
		c.milli += int32(sign * t.Milli)
		c.slices += int32(sign * t.Slices)
		c.replicas += int32(sign * t.Replicas)
		c.tasks -= int32(sign)
	}
}

// fits is the first pool that a shape fits now; nil for none.
func (r *room) fits(s *Snapshot, sh *Shape) *gpuPool {
	if sh.req.CPUMHz > r.cpu || sh.req.MemoryMiB > r.memory {
		return nil
	}
	for i, b := range r.node.pools {
		if r.holds(s, sh, i) && sh.could(s, b) {
			return b
		}
	}
	return nil
}

// holds reports whether enough GPUs of a pool hold what a shape needs of each.
func (r *room) holds(s *Snapshot, sh *Shape, pool int) bool {
	b := r.node.pools[pool]
	if sh.req.GPUs == 0 {
		return true
	}
	if b.kind < 0 || len(b.gpus) < sh.req.GPUs {
		return false
	}
	nd, found := sh.need(s, b.kind), 0
	for i := range r.gpus[pool] {
		if nd.ok && nd.fits(&r.gpus[pool][i]) && sh.suits(b, i) {
			found++
		}
	}
	return found >= sh.req.GPUs
}

// take lets a shape start on a pool that it fits, on the first GPUs that hold it, and
// returns what it holds.
func (r *room) take(s *Snapshot, sh *Shape, b *gpuPool) *Usage {
	u := &Usage{NodeID: r.node.spec.ID, CPUMHz: sh.req.CPUMHz, MemoryMiB: sh.req.MemoryMiB}
	gpus := r.gpus[slices.Index(r.node.pools, b)]
	for i := range gpus {
		if len(u.Takes) == sh.req.GPUs {
			break
		}
		nd := sh.need(s, b.kind)
		if !nd.fits(&gpus[i]) || !sh.suits(b, i) {
			continue
		}
		t := nd.take
		t.GPU = b.positions[i]
		u.Takes = append(u.Takes, t)
	}
	r.add(u, -1)
	return u
}
