// SPDX-License-Identifier: MPL-2.0

package cluster

import "github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"

// stock sums up the pools of one kind.
type stock struct {
	GPUs    int64
	Free    int64         // usable milli
	idle    map[int32]int // number of pools by count of idle GPUs
	largest forecast.Size // of all that were there, unless it is stale
	stale   bool          // largest: it may be that of a node that is gone
}

// larger is of each amount the larger of a size and that of an empty pool.
func larger(m forecast.Size, b *Pool) forecast.Size {
	return forecast.Size{CPU: max(m.CPU, b.Node.Spec.CPUMHz), Memory: max(m.Memory, b.Node.Spec.MemoryMiB), GPUs: max(m.GPUs, len(b.GPUs))}
}

func (st *stock) add(b *Pool) {
	st.GPUs += int64(len(b.Positions))
	st.idle[b.Idle]++
	st.largest = larger(st.largest, b)
}

func (st *stock) remove(b *Pool) {
	st.GPUs -= int64(len(b.Positions))
	st.Free -= b.Free
	st.idle[b.Idle]--
	st.stale = true
}

// biggest is the largest empty node of a kind. Only a node that is gone is a
// reason to look at all.
func (s *Snapshot) biggest(id int32) forecast.Size {
	st := &s.Stock[id]
	if st.stale {
		st.stale, st.largest = false, forecast.Size{}
		for _, b := range s.Pools {
			if b != nil && b.Kind == id {
				st.largest = larger(st.largest, b)
			}
		}
	}
	return st.largest
}

// Supply is what the cluster has, for the forecast. Its maps are the snapshot's own.
func (s *Snapshot) Supply() *forecast.Supply {
	out := &forecast.Supply{Kinds: make([]forecast.Kind, len(s.Kinds))}
	for id := range s.Kinds {
		out.Kinds[id] = forecast.Kind{Free: s.Stock[id].Free, Idle: s.Stock[id].idle, Largest: s.biggest(int32(id))}
	}
	out.Pools = func(yield func(forecast.Pool, int) bool) {
		for i := range s.States.List {
			cl := &s.States.List[i]
			if len(cl.Pools) == 0 {
				continue
			}
			if b := s.Pools[cl.Pools[0]]; b.Kind >= 0 && !yield(b.Supply(), len(cl.Pools)) {
				return
			}
		}
	}
	return out
}

// Supply is a pool as the forecast sees it.
func (b *Pool) Supply() forecast.Pool {
	n := b.Node
	return forecast.Pool{
		Kind: b.Kind, GPUs: int32(len(b.GPUs)), Idle: b.Idle,
		CPU: n.CPU, Memory: n.Memory, NodeCPU: n.Spec.CPUMHz, NodeMemory: n.Spec.MemoryMiB, Residents: len(n.Holders),
	}
}

// inUse sums up the nodes with GPUs that may be placed on.
type inUse struct{ cpu, cpus, gpus, used int64 }

// counts reports whether a node is part of [inUse].
func (n *NodeState) counts() bool { return len(n.Spec.GPUs) > 0 && !n.Spec.Ineligible }

// countNode adds what a node has (sign 1), or takes it away (-1).
func (s *Snapshot) countNode(n *NodeState, sign int64) {
	if n.counts() {
		s.inUse.cpus += sign * n.Spec.CPUMHz
		s.inUse.gpus += sign * int64(len(n.Spec.GPUs))
	}
}

// CPUPerGPU is the part of the CPU of GPU nodes that is in use, over the part of the
// GPUs; 0 where no GPU is.
func (s *Snapshot) CPUPerGPU() float64 {
	u := s.inUse
	if u.used == 0 || u.cpus == 0 {
		return 0
	}
	return float64(u.cpu) / float64(u.cpus) * float64(u.gpus*GPUMilli) / float64(u.used)
}

// MostlyFree reports whether part thousandths of the GPUs are free.
func (s *Snapshot) MostlyFree(part int64) bool {
	var free, gpus int64
	for i := range s.Stock {
		free, gpus = free+s.Stock[i].Free, gpus+s.Stock[i].GPUs
	}
	return free >= part*gpus
}
