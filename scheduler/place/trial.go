package place

import "slices"

// trial is a copy of what a pool has free, to try evictions on.
type trial struct {
	shape *Shape
	pool  *gpuPool
	need  *need
	cpu   int64
	mem   int64
	gpus  []gpuState
	owed  Charge // what the request's own queue has yet to give up
	e     *eviction
}

func (e *eviction) trial(b *gpuPool) *trial {
	e.rank()
	r := &trial{e: e, owed: e.deficit, shape: e.sh, pool: b, cpu: b.node.cpu, mem: b.node.memory, gpus: slices.Clone(b.gpus)}
	if e.sh.req.GPUs > 0 {
		r.need = e.sh.need(e.snap, b.kind)
	}
	return r
}

// add frees (sign 1) or takes back (sign -1) what a usage holds.
func (r *trial) add(u *Usage, sign int64) {
	r.cpu += sign * u.CPUMHz
	r.mem += sign * u.MemoryMiB
	if r.e.deficit != (Charge{}) && u.Queue == r.e.r.Queue {
		r.owed = r.owed.Plus(u.claim.Charge.Times(-sign))
	}
	for _, t := range u.Takes {
		at := r.pool.node.where[t.GPU]
		if at.pool != r.pool {
			continue
		}
		c := &r.gpus[at.index]
		c.milli += int32(sign * t.Milli)
		c.slices += int32(sign * t.Slices)
		c.replicas += int32(sign * t.Replicas)
		c.tasks -= int32(sign)
	}
}

// empty frees what all candidates hold and reports whether the shape fits then.
func (r *trial) empty(candidates []*Usage) bool {
	for _, u := range candidates {
		r.add(u, 1)
	}
	return r.fits()
}

func (r *trial) fits() bool {
	if r.owed.Milli > 0 || r.owed.MemoryMiB > 0 || r.shape.req.CPUMHz > r.cpu || r.shape.req.MemoryMiB > r.mem {
		return false
	}
	found := 0
	for i := range r.gpus {
		if r.need != nil && r.need.fits(&r.gpus[i]) && r.shape.suits(r.pool, i) {
			found++
		}
	}
	return found >= r.shape.req.GPUs
}

// touches reports whether a usage holds a part of one of a set of GPUs.
func (r *trial) touches(u *Usage, gpus uint64) bool {
	return slices.ContainsFunc(u.Takes, func(t Take) bool {
		at := r.pool.node.where[t.GPU]
		return at.pool == r.pool && gpus>>at.index&1 == 1
	})
}

// value is how much of what the shape needs a usage would free, for choosing
// few large victims over many small ones.
func (r *trial) value(u *Usage) int64 {
	var sum int64
	for _, t := range u.Takes {
		if r.need != nil && r.pool.node.where[t.GPU].pool == r.pool {
			sum += gpuMilli * max(t.Milli, t.Slices, t.Replicas)
		}
	}
	return sum + min(u.CPUMHz, r.shape.req.CPUMHz)
}
