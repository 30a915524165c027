// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// trial is a copy of what a pool has free, to try evictions on.
type trial struct {
	shape *fit.Shape
	pool  *cluster.Pool
	need  *fit.Need
	cpu   int64
	mem   int64
	gpus  []cluster.GPUState
	owed  quota.Charge // what the request's own queue has yet to give up
	e     *Eviction
}

// trial copies what a pool has free.
func (e *Eviction) trial(b *cluster.Pool) *trial {
	e.findRanks()
	r := &trial{e: e, owed: e.deficit, shape: e.sh, pool: b, cpu: b.Node.CPU, mem: b.Node.Memory, gpus: slices.Clone(b.GPUs)}
	if e.sh.Req.GPUs > 0 {
		r.need = e.sh.Need(e.snap, b.Kind)
	}
	return r
}

// add frees (sign 1) or takes back (sign -1) what a usage holds.
func (r *trial) add(u *cluster.Usage, sign int64) {
	r.cpu += sign * u.CPUMHz
	r.mem += sign * u.MemoryMiB
	if r.e.deficit != (quota.Charge{}) && u.Queue == r.e.r.Queue {
		r.owed = r.owed.Plus(u.Claim.Charge.Times(-sign))
	}
	for _, t := range u.Takes {
		at := r.pool.Node.Where[t.GPU]
		if at.Pool != r.pool {
			continue
		}
		c := &r.gpus[at.Index]
		c.Milli += int32(sign * t.Milli)
		c.Slices += int32(sign * t.Slices)
		c.Replicas += int32(sign * t.Replicas)
		c.Tasks -= int32(sign)
	}
}

// empty frees what all candidates hold and reports whether the shape fits then.
func (r *trial) empty(candidates []*cluster.Usage) bool {
	for _, u := range candidates {
		r.add(u, 1)
	}
	return r.fits()
}

func (r *trial) fits() bool {
	if r.owed.Milli > 0 || r.owed.MemoryMiB > 0 || r.shape.Req.CPUMHz > r.cpu || r.shape.Req.MemoryMiB > r.mem {
		return false
	}
	found := 0
	for i := range r.gpus {
		if r.need != nil && r.need.Fits(&r.gpus[i]) && r.shape.Suits(r.pool, i) {
			found++
		}
	}
	return found >= r.shape.Req.GPUs
}

// touches reports whether a usage holds a part of one of a set of GPUs.
func (r *trial) touches(u *cluster.Usage, gpus uint64) bool {
	return slices.ContainsFunc(u.Takes, func(t cluster.Take) bool {
		at := r.pool.Node.Where[t.GPU]
		return at.Pool == r.pool && gpus>>at.Index&1 == 1
	})
}

// value is how much of what the shape needs a usage would free, for choosing
// few large victims over many small ones.
func (r *trial) value(u *cluster.Usage) int64 {
	var sum int64
	for _, t := range u.Takes {
		if r.need != nil && r.pool.Node.Where[t.GPU].Pool == r.pool {
			sum += cluster.GPUMilli * max(t.Milli, t.Slices, t.Replicas)
		}
	}
	return sum + min(u.CPUMHz, r.shape.Req.CPUMHz)
}
