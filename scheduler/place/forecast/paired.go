// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"cmp"
	"math"
	"slices"
)

// Where tasks want compute and GPU memory in other proportions than the GPUs have
// them, a GPU has two things to waste. A memory-hungry task leaves compute that only
// others can use: idle capacity is counted in both, each by its scarcity.

// Part is so much of one GPU: compute in the lower bits and memory above, in milli. The
// bit above each half is free, so that one subtraction compares both.
type Part int32

const partBits, partGuards = 12, 1<<23 | 1<<11

// NewPart is so much compute and memory.
func NewPart(compute, memory int32) Part { return Part(memory<<partBits | compute) }

func (p Part) compute() int32 { return int32(p) & (1<<partBits - 1) }

func (p Part) memory() int32 { return int32(p) >> partBits }

// within reports that a task's part of a GPU is free.
func (p Part) within(free Part) bool { return ((free|partGuards)-p)&partGuards == partGuards }

// apart is from which difference on, in milli, a task wants compute and memory in other
// proportions than GPUs have them, and manyApart the part of the tasks that share GPUs
// from which on both count.
const apart, manyApart = 50, 0.05

// both is how much each dimension counts, in parts of bothWhole; nothing where they are
// not told apart.
type both struct{ compute, memory int32 }

const bothWhole = 1024

// weigh is what counts of a part that stays idle, in milli times bothWhole.
func (b *both) weigh(p Part) int32 { return b.compute*p.compute() + b.memory*p.memory() }

// dimensions tells whether compute and memory are told apart, and how scarce they are:
// the scarcer counts in full, the other by how much less of it is wanted.
// The arrivals say it, once there are enough: a general mix knows no proportions.
func (d *Demand) dimensions(s *Supply) (b both) {
	sample := Prior
	if d.tasks[Seen] >= FirstReview {
		sample = Seen
	}
	var shared, differ, compute, memory float64
	for _, e := range d.entries {
		c, m, ok := e.shape.parts(s)
		tasks := float64(e.tasks[sample])
		if !ok || tasks == 0 {
			continue
		}
		gpus := tasks * float64(e.shape.GPUs)
		compute, memory = compute+gpus*float64(c), memory+gpus*float64(m)
		if e.shape.Whole {
			continue
		}
		shared += tasks
		if c-m > apart || m-c > apart {
			differ += tasks
		}
	}
	if differ == 0 || differ < manyApart*shared {
		return both{}
	}
	most := max(compute, memory)
	return both{scarce(compute / most), scarce(memory / most)}
}

// plenty is the part of the demand for the scarcer dimension up to which the other
// is not scarce at all, and short that from which on it is as scarce.
const plenty, short = 0.5, 0.75

func scarce(part float64) int32 {
	return int32(bothWhole * min(1, max(0, (part-plenty)/(short-plenty))))
}

// parts is what the shape takes of a GPU of the first kind that holds it.
func (sh *Shape) parts(s *Supply) (compute, memory int32, ok bool) {
	if sh.GPUs == 0 || sh.Parts == nil {
		return 0, 0, false
	}
	for id := range s.Kinds {
		if _, holds := futureOf(sh, int32(id), s.Kinds[id].Largest); holds {
			compute, memory = sh.Parts(int32(id))
			return compute, memory, true
		}
	}
	return 0, 0, false
}

// pair is a task that may come to pools of one kind of GPU where both dimensions count.
type pair struct {
	drawn[pairTask]
	minCPU int32
	least  Part // that a GPU task needs, of each
}

// pairTask is a task on one GPU, or without compute and memory a CPU-only one.
type pairTask struct {
	cpu    int32
	part   Part
	weighs int32
}

// pairFree is what a GPU has free and how much of it counts.
type pairFree struct {
	part   Part
	weighs int32
}

// fill places a stream as [future.fill] does. The GPUs are in the order of what of them
// counts, so that the first which a task fits is the tightest.
func (f *pair) fill(stream []pairTask, cpu int32, free []pairFree, misses int) (lost int64, left int) {
	for missed := 0; missed < misses && len(stream) > 1 && cpu >= f.minCPU && len(free) > 0; stream = stream[2:] {
		t, other := &stream[0], &stream[1]
		at, to := t.tightest(cpu, free), other.tightest(cpu, free)
		if at < 0 && to < 0 {
			missed++
			continue
		}
		missed = 0
		if at < 0 || to >= 0 && t.part > 0 && other.part > 0 && free[to].weighs-other.weighs < free[at].weighs-t.weighs {
			t, at = other, to
		}
		cpu -= t.cpu
		if t.part == 0 {
			continue
		}
		rest := pairFree{free[at].part - t.part, free[at].weighs - t.weighs}
		if !f.useful(rest.part) {
			lost += int64(rest.weighs)
			copy(free[at:], free[at+1:])
			free = free[:len(free)-1]
			continue
		}
		for ; at > 0 && free[at-1].weighs > rest.weighs; at-- {
			free[at] = free[at-1]
		}
		free[at] = rest
	}
	for i := range free {
		lost += int64(free[i].weighs)
	}
	return lost, len(stream)
}

// useful reports that a task may use what a GPU has left.
func (f *pair) useful(p Part) bool { return f.least.within(p) }

// tightest is the GPU that a task leaves the least on, or -1 where it fits none. A
// CPU-only task needs none.
func (t *pairTask) tightest(cpu int32, free []pairFree) int {
	if t.cpu > cpu {
		return -1
	}
	if t.part == 0 {
		return 0
	}
	for i := range free {
		if t.part.within(free[i].part) {
			return i
		}
	}
	return -1
}

// pairOf translates a shape to one GPU of a kind.
func (b *both) pairOf(sh *Shape, id int32, t futureTask) pairTask {
	if t.share() == 0 {
		return pairTask{cpu: t.cpu()}
	}
	compute, memory := t.share(), t.share()
	if sh.Parts != nil {
		compute, memory = sh.Parts(id)
	}
	part := NewPart(compute, memory)
	return pairTask{t.cpu(), part, b.weigh(part)}
}

func newPair(tasks []pairTask, d drawn[pairTask]) pair {
	f := pair{drawn: d, minCPU: math.MaxInt32}
	compute, memory := int32(gpuMilli), int32(gpuMilli)
	for _, t := range tasks {
		if t.part > 0 {
			f.minCPU = min(f.minCPU, t.cpu)
			compute, memory = min(compute, t.part.compute()), min(memory, t.part.memory())
		}
	}
	f.least = NewPart(compute, memory)
	return f
}

// Paired reports whether compute and memory are told apart: then [Waste.EstimateParts]
// estimates, else [Waste.Estimate].
func (ws *Waste) Paired() bool { return ws.both != both{} }

// EstimateParts is [Waste.Estimate] where compute and memory are told apart.
func (ws *Waste) EstimateParts(key StateKey, kind int32, cpu int64, parts []Part) int32 {
	f := &ws.futures[kind]
	if len(f.pair.streams) == 0 {
		return 0
	}
	var lost int64
	var free, buf [MaxGPUs]pairFree
	n := 0
	for _, p := range parts {
		one := pairFree{p, ws.both.weigh(p)}
		if !f.pair.useful(p) {
			lost += int64(one.weighs)
			continue
		}
		free[n] = one
		n++
	}
	slices.SortFunc(free[:n], func(a, b pairFree) int { return cmp.Or(cmp.Compare(a.weighs, b.weighs), cmp.Compare(a.part, b.part)) })
	cpu = cpu / f.cpuStep * f.cpuStep
	sum := f.pair.play(2, func(stream []pairTask) (int64, int) {
		copy(buf[:n], free[:n])
		return f.pair.fill(stream, int32(cpu), buf[:n], ws.Misses)
	})
	idle := int32((lost + sum/int64(len(f.pair.streams))) / bothWhole)
	ws.known.put(key, idle)
	return idle
}
