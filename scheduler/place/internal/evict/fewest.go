// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// mostSubsets bounds how many sets of victims are tried on one pool for fewer than
// the orders of [Eviction.search] find.
const mostSubsets = 1 << 14

// fewest looks for fewer victims than a set has, none of higher priority: all sets
// of candidates are tried, the small first, from as many on as it takes at least.
// The orders nearly always find as few, and then nothing needs to be tried.
func (e *Eviction) fewest(b *cluster.Pool, candidates []*cluster.Usage, found *Set) *Set {
	room := e.trial(b)
	var may []*cluster.Usage
	for _, u := range candidates {
		if u.Priority <= found.top {
			may = append(may, u)
		}
	}
	tries := mostSubsets
	for size := room.atLeast(may); size < len(found.Victims); size++ {
		var best *Set
		chosen := make([]*cluster.Usage, 0, size)
		var choose func(from int)
		choose = func(from int) {
			if len(chosen) == size {
				tries--
				if room.fits() {
					sp := &Set{Pool: b}
					for _, u := range chosen {
						sp.add(u, e)
					}
					if best == nil || e.CompareVictims(sp, best) < 0 {
						best = sp
					}
				}
				return
			}
			for i := from; i <= len(may)-(size-len(chosen)) && tries > 0; i++ {
				room.add(may[i], 1)
				chosen = append(chosen, may[i])
				choose(i + 1)
				chosen = chosen[:len(chosen)-1]
				room.add(may[i], -1)
			}
		}
		choose(0)
		if best != nil {
			return best
		}
		if tries <= 0 {
			break
		}
	}
	return found
}

// atLeast is how many of the candidates must go at least, for CPU, for memory and
// for GPUs each by itself.
func (r *trial) atLeast(candidates []*cluster.Usage) int {
	least := max(
		largest(candidates, r.shape.Req.CPUMHz-r.cpu, func(u *cluster.Usage) int64 { return u.CPUMHz }),
		largest(candidates, r.shape.Req.MemoryMiB-r.mem, func(u *cluster.Usage) int64 { return u.MemoryMiB }),
	)
	if r.need == nil {
		return least
	}
	var perGPU []int // victims that it takes on each GPU that lacks room
	wide := false    // some hold parts of several, and count for each
	short := r.shape.Req.GPUs
	for i := range r.gpus {
		c := &r.gpus[i]
		if !r.shape.Suits(r.pool, i) || !c.Open {
			continue
		}
		if r.need.Fits(c) {
			short--
			continue
		}
		var holders []cluster.Take
		for _, u := range candidates {
			for _, t := range u.Takes {
				if at := r.pool.Node.Where[t.GPU]; at.Pool == r.pool && at.Index == i {
					holders = append(holders, t)
					wide = wide || len(u.Takes) > 1
				}
			}
		}
		need := &r.need.Take
		n := max(
			largest(holders, need.Milli-int64(c.Milli), func(t cluster.Take) int64 { return t.Milli }),
			largest(holders, need.Slices-int64(c.Slices), func(t cluster.Take) int64 { return t.Slices }),
			largest(holders, need.Replicas-int64(c.Replicas), func(t cluster.Take) int64 { return t.Replicas }),
		)
		if r.need.Whole {
			n = max(n, int(c.Tasks))
		}
		perGPU = append(perGPU, n)
	}
	if short <= 0 || short > len(perGPU) {
		return least
	}
	slices.Sort(perGPU)
	if wide {
		return max(least, perGPU[short-1])
	}
	sum := 0
	for _, n := range perGPU[:short] {
		sum += n
	}
	return max(least, sum)
}

// largest is how many of the largest of a list make up for the missing amount; all and
// one more where they do not.
func largest[T any](list []T, missing int64, of func(T) int64) int {
	var have []int64
	for _, x := range list {
		have = append(have, of(x))
	}
	slices.Sort(have)
	for n := 0; ; n++ {
		if missing <= 0 || n == len(have) {
			if missing > 0 {
				n++
			}
			return n
		}
		missing -= have[len(have)-1-n]
	}
}
