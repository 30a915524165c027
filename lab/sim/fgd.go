// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"math"
	"slices"
)

// NewFGD is the baseline FGD, fragmentation gradient descent (Weng et al.,
// USENIX ATC'23), as its authors' simulator computes it:
//
//	F(n) = Σ_m p_m · F_n(m)
//	F_n(m) = free GPU of n, when a task of class m cannot run there, else the
//	         sum of the free shares that are smaller than the class's demand
//	score = ⌊100 · sigmoid((F(n) − F(n after)) / 1000)⌋
//
// The classes m are the most frequent shapes of the history that make up 95%
// of it, CPU-only ones included; a CPU-only class counts all free GPU. The
// rounding is part of the policy: within 40 milli nodes tie and the first wins.
func NewFGD(nodes []Node, history []Task) Placer {
	return newBaseline(nodes, newFGDScore(nodes, history))
}

func newFGDScore(nodes []Node, history []Task) *fgd {
	f := &fgd{models: map[string][]class{}, known: map[*machine]known{}}
	all := typical(history)
	for _, n := range nodes {
		if f.models[n.Model] == nil {
			f.models[n.Model] = classesOn(n.Model, all)
		}
	}
	return f
}

type fgd struct {
	models map[string][]class // by model of the node
	known  map[*machine]known // F(n) of nodes as they are
}

type known struct {
	version int32
	frag    float64
}

// class is a typical task and how frequent it is.
type class struct {
	part   float64
	cpu    int64
	milli  int64
	gpus   int
	never  bool // the model of the node is not allowed
	models []string
}

// classesOn marks the classes that may not use a model.
func classesOn(model string, all []class) []class {
	out := slices.Clone(all)
	for i := range out {
		out[i].never = !mayUse(&Task{Models: out[i].models}, model)
	}
	return out
}

// typicalPart is the part of the history that the classes must cover.
const typicalPart = 0.95

// typical counts the shapes of a history, most frequent first, and keeps those
// that cover typicalPart of it.
func typical(history []Task) []class {
	index := map[taskKey]int{}
	var all []class
	for _, t := range history {
		key := keyOf(&t)
		key.memory, key.gpuMemory = 0, 0 // memory is no part of a class
		at, ok := index[key]
		if !ok {
			at = len(all)
			index[key] = at
			all = append(all, class{cpu: t.CPUMilli, milli: t.GPUMilli, gpus: t.GPUs, models: t.Models})
		}
		all[at].part++
	}
	slices.SortStableFunc(all, func(a, b class) int { return int(b.part - a.part) })
	covered, n := 0.0, 0
	for n < len(all) && covered < typicalPart*float64(len(history)) {
		covered += all[n].part
		n++
	}
	for i := range all[:n] {
		all[i].part /= covered
	}
	return all[:n]
}

func (f *fgd) score(m *machine, t *Task) (int64, []int) {
	before := f.known[m]
	if before.version != m.version {
		before = known{m.version, f.frag(m)}
		f.known[m] = before
	}
	after := *m
	after.gpus = slices.Clone(m.gpus)
	after.cpu -= t.CPUMilli
	if t.GPUs != 1 || t.GPUMilli == gpuMilli {
		gpus := firstFit(m, t)
		for _, g := range gpus {
			after.gpus[g] -= t.GPUMilli
		}
		return rounded(before.frag - f.frag(&after)), gpus
	}
	best, at := int64(-1), 0
	for i, g := range m.gpus {
		if !m.holds(i, t) || m.alike(i) {
			continue
		}
		after.gpus[i] -= t.GPUMilli
		if s := rounded(before.frag - f.frag(&after)); s > best {
			best, at = s, i
		}
		after.gpus[i] = g
	}
	return best, []int{at}
}

// alike reports whether an earlier GPU has as much free.
func (m *machine) alike(i int) bool {
	for j := range i {
		if m.gpus[j] == m.gpus[i] && m.gpuMemory[j] == m.gpuMemory[i] {
			return true
		}
	}
	return false
}

func firstFit(m *machine, t *Task) []int {
	var out []int
	for i := range m.gpus {
		if len(out) < t.GPUs && m.holds(i, t) {
			out = append(out, i)
		}
	}
	return out
}

func rounded(gain float64) int64 {
	return int64(100 / (1 + math.Exp(-gain/1000)))
}

// frag is F(n).
func (f *fgd) frag(m *machine) float64 {
	var free int64
	for _, g := range m.gpus {
		free += g
	}
	var sum float64
	classes := f.models[m.model]
	for i := range classes {
		c := &classes[i]
		sum += c.part * float64(c.wasted(m, free))
	}
	return sum
}

// wasted is F_n(m): the free GPU that a task of the class cannot use.
func (c *class) wasted(m *machine, free int64) int64 {
	if c.gpus == 0 || c.never || m.cpu < c.cpu {
		return free
	}
	fit := 0
	var small int64
	for _, g := range m.gpus {
		if g >= c.milli {
			fit++
		} else {
			small += g
		}
	}
	if fit < c.gpus {
		return free
	}
	return small
}
