// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// Room is a copy of what a node has free, to try on what would fit.
type Room struct {
	node        *cluster.NodeState
	cpu, memory int64
	gpus        [][]cluster.GPUState // by pool
}

// NewRoom copies what a node has free.
func NewRoom(n *cluster.NodeState) Room {
	r := Room{node: n, cpu: n.CPU, memory: n.Memory}
	for _, b := range n.Pools {
		r.gpus = append(r.gpus, slices.Clone(b.GPUs))
	}
	return r
}

// Copy is a room of its own with as much free.
func (r *Room) Copy() Room {
	out := *r
	out.gpus = make([][]cluster.GPUState, len(r.gpus))
	for i := range r.gpus {
		out.gpus[i] = slices.Clone(r.gpus[i])
	}
	return out
}

// Add frees (sign 1) or takes (sign -1) what a usage holds.
func (r *Room) Add(u *cluster.Usage, sign int64) {
	r.cpu += sign * u.CPUMHz
	r.memory += sign * u.MemoryMiB
	for _, t := range u.Takes {
		at := r.node.Where[t.GPU]
		c := &r.gpus[slices.Index(r.node.Pools, at.Pool)][at.Index]
		c.Milli += int32(sign * t.Milli)
		c.Slices += int32(sign * t.Slices)
		c.Replicas += int32(sign * t.Replicas)
		c.Tasks -= int32(sign)
	}
}

// Fits is the first pool that a shape fits now; nil for none.
func (r *Room) Fits(s *cluster.Snapshot, sh *Shape) *cluster.Pool {
	if sh.Req.CPUMHz > r.cpu || sh.Req.MemoryMiB > r.memory {
		return nil
	}
	for i, b := range r.node.Pools {
		if r.holds(s, sh, i) && sh.Could(s, b) {
			return b
		}
	}
	return nil
}

// holds reports whether enough GPUs of a pool hold what a shape needs of each.
func (r *Room) holds(s *cluster.Snapshot, sh *Shape, pool int) bool {
	b := r.node.Pools[pool]
	if sh.Req.GPUs == 0 {
		return true
	}
	if b.Kind < 0 || len(b.GPUs) < sh.Req.GPUs {
		return false
	}
	nd, found := sh.Need(s, b.Kind), 0
	for i := range r.gpus[pool] {
		if nd.OK && nd.Fits(&r.gpus[pool][i]) && sh.Suits(b, i) {
			found++
		}
	}
	return found >= sh.Req.GPUs
}

// Take lets a shape start on a pool that it fits, on the first GPUs that hold it, and
// returns its takes.
func (r *Room) Take(s *cluster.Snapshot, sh *Shape, b *cluster.Pool) *cluster.Usage {
	u := &cluster.Usage{NodeID: r.node.Spec.ID, CPUMHz: sh.Req.CPUMHz, MemoryMiB: sh.Req.MemoryMiB}
	gpus := r.gpus[slices.Index(r.node.Pools, b)]
	for i := range gpus {
		if len(u.Takes) == sh.Req.GPUs {
			break
		}
		nd := sh.Need(s, b.Kind)
		if !nd.Fits(&gpus[i]) || !sh.Suits(b, i) {
			continue
		}
		t := nd.Take
		t.GPU = b.Positions[i]
		u.Takes = append(u.Takes, t)
	}
	r.Add(u, -1)
	return u
}
