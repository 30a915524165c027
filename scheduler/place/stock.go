package place

import "github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"

// stock sums up the pools of one kind.
type stock struct {
	gpus    int64
	free    int64         // usable milli
	idle    map[int32]int // number of pools by count of idle GPUs
	largest forecast.Size // unless it is to be looked for
	look    bool
}

// larger is of each amount the larger of a size and that of an empty pool.
func larger(m forecast.Size, b *gpuPool) forecast.Size {
	return forecast.Size{CPU: max(m.CPU, b.node.spec.CPUMHz), Memory: max(m.Memory, b.node.spec.MemoryMiB), GPUs: max(m.GPUs, len(b.gpus))}
}

func (st *stock) add(b *gpuPool) {
	st.gpus += int64(len(b.positions))
	st.idle[b.idle]++
	st.largest = larger(st.largest, b)
}

func (st *stock) remove(b *gpuPool) {
	st.gpus -= int64(len(b.positions))
	st.free -= b.free
	st.idle[b.idle]--
	st.look = true
}

// biggest is the largest empty node of a kind. Only a node that is gone is a
// reason to look at all.
func (s *Snapshot) biggest(id int32) forecast.Size {
	st := &s.stock[id]
	if st.look {
		st.look, st.largest = false, forecast.Size{}
		for _, b := range s.pools {
			if b != nil && b.kind == id {
				st.largest = larger(st.largest, b)
			}
		}
	}
	return st.largest
}

// supply is what the cluster has, for the forecast. Its maps are the snapshot's own.
func (s *Snapshot) supply() *forecast.Supply {
	out := &forecast.Supply{Kinds: make([]forecast.Kind, len(s.kinds))}
	for id := range s.kinds {
		out.Kinds[id] = forecast.Kind{Free: s.stock[id].free, Idle: s.stock[id].idle, Largest: s.biggest(int32(id))}
	}
	out.Pools = func(yield func(forecast.Pool) bool) {
		for _, b := range s.pools {
			if b != nil && b.kind >= 0 && !yield(b.supply()) {
				return
			}
		}
	}
	return out
}

// supply is a pool as the forecast sees it.
func (b *gpuPool) supply() forecast.Pool {
	n := b.node
	return forecast.Pool{
		Kind: b.kind, GPUs: int32(len(b.gpus)), Idle: b.idle,
		CPU: n.cpu, Memory: n.memory, NodeCPU: n.spec.CPUMHz, NodeMemory: n.spec.MemoryMiB, Residents: len(n.holders),
	}
}

// cpuPerGPU is the part of the CPU of GPU nodes that is in use, over the part of the
// GPUs; 0 where no GPU is.
func (s *Snapshot) cpuPerGPU() float64 {
	var cpu, cpus, used, gpus float64
	for _, n := range s.nodes {
		if len(n.spec.GPUs) == 0 || n.spec.Ineligible {
			continue
		}
		cpu += float64(n.spec.CPUMHz - n.cpu)
		cpus += float64(n.spec.CPUMHz)
		gpus += float64(len(n.spec.GPUs)) * gpuMilli
		for _, b := range n.pools {
			used += float64(b.used)
		}
	}
	if used == 0 || cpus == 0 {
		return 0
	}
	return cpu / cpus * gpus / used
}

// mostlyFree reports whether so many thousandths of the GPU are free.
func (s *Snapshot) mostlyFree(part int64) bool {
	var free, gpus int64
	for i := range s.stock {
		free, gpus = free+s.stock[i].free, gpus+s.stock[i].gpus
	}
	return free >= part*gpus
}
