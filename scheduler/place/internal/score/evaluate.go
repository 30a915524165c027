// SPDX-License-Identifier: MPL-2.0

package score

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// usageTerms are the utilization terms of a pool after a placement, in
// thousandths.
type usageTerms struct{ gpu, memory, cpu int64 }

func (sc *Scorer) usageAfter(sh *Task, b *cluster.Pool) usageTerms {
	n := b.Node
	t := usageTerms{
		memory: usedMilli(n.Spec.MemoryMiB, n.Memory-sh.Req.MemoryMiB),
		cpu:    usedMilli(n.Spec.CPUMHz, n.CPU-sh.Req.CPUMHz),
	}
	if len(b.GPUs) > 0 {
		used := blend(b.Used, b.Measured, sc.weights.MeasuredMilli)
		if sh.Req.GPUs > 0 {
			compute, memory := sh.Need(sc.snap, b.Kind).Take.Allocates(&sc.snap.Kinds[b.Kind])
			used += (compute + memory) / 2 * int64(sh.Req.GPUs)
		}
		t.gpu = min(used/int64(len(b.GPUs)), 1000)
	}
	return t
}

func usedMilli(capacity, free int64) int64 {
	if capacity <= 0 {
		return 0
	}
	return min(max((capacity-free)*1000/capacity, 0), 1000)
}

func blend(allocated, measured, part int64) int64 {
	return ((1000-part)*allocated + part*measured) / 1000
}

// evaluateRoughly works out roughly what placing the shape does on a pool that it fits.
func (sc *Scorer) evaluateRoughly(v *Estimate, sh *Task, b *cluster.Pool) {
	u := sc.usageAfter(sh, b)
	*v = Estimate{
		kind:   b.Kind,
		usage:  int16((sc.weights.GPUMilli*u.gpu + sc.weights.MemoryMilli*u.memory + sc.weights.CPUMilli*u.cpu) / 1000),
		left:   sc.Left(sh.Shape, b),
		before: uint8(b.Idle), after: uint8(b.Idle), roughIdle: uint8(b.Idle), known: fine,
	}
	if b.Kind < 0 {
		return
	}
	v.roomBefore, v.roomAfter = roomFor(b, b.Node.CPU), roomFor(b, b.Node.CPU-sh.Req.CPUMHz)
	ch := sc.choose(sh, b, sc.Rough)
	v.roughWaste, v.roughIdle = ch.waste+ch.heat, uint8(ch.Idle)
	v.waste, v.after = v.roughWaste, v.roughIdle
	sh.policy.complete(sc, v, b, ch.heat)
}

// evaluateFinely makes a rough estimate fine.
func (sc *Scorer) evaluateFinely(v *Estimate, sh *Task, b *cluster.Pool) {
	ch := sc.choose(sh, b, sc.Fine)
	v.waste, v.after, v.known = ch.waste+ch.heat, uint8(ch.Idle), fine
}

// evaluate is a rough estimate, made fine where the policy wants it.
func (sc *Scorer) evaluate(sh *Task, b *cluster.Pool) (v Estimate) {
	sc.evaluateRoughly(&v, sh, b)
	if v.known == rough {
		sc.evaluateFinely(&v, sh, b)
	}
	return v
}

// Score is the points of a pool that fits a shape, evaluated afresh.
func (sc *Scorer) Score(sh *Task, b *cluster.Pool) int32 {
	v := sc.evaluate(sh, b)
	if !sc.Turnover.Lives {
		return sc.points(&v, nil, sh)
	}
	broken := sc.breaks(sh.Shape, b, int32(v.roughIdle))
	return sc.points(&v, &broken, sh)
}

// points is the score of a placement with an estimate; broken is the room for several GPUs that
// it takes away, nil where nothing is known.
func (sc *Scorer) points(v *Estimate, broken *forecast.PlaceCounts, sh *Task) int32 {
	return sh.policy.score(sc, v, broken, sh.Shape)
}

// Chosen are the GPUs of a pool that a task gets, by the estimate that decides.
func (sc *Scorer) Chosen(sh *Task, b *cluster.Pool) Choice {
	return sc.choose(sh, b, sh.policy.precision(sc))
}

// Term is one part of a node's score: value times weight, both in thousandths.
type Term struct {
	Name        string
	ValueMilli  int64
	WeightMilli int64
}

// Terms are the parts of a score on a pool, by the estimate that led to it, and what the placement
// takes from later work, in thousandths of a GPU.
func (sc *Scorer) Terms(sh *Task, b *cluster.Pool, v *Estimate, pts int32) (terms []Term, lost int64) {
	w, u, sign := &sc.weights, sc.usageAfter(sh, b), sh.policy.sign()
	frag := Term{Name: "fragmentation", WeightMilli: -w.FragmentationMilli}
	if w.FragmentationMilli > 0 { // what the other terms do not make up
		frag.ValueMilli = (sign*int64(v.usage) - int64(pts)) * 1000 / w.FragmentationMilli
	}
	heat := int64(0)
	if sh.Req.GPUs > 0 && b.Kind >= 0 {
		heat = int64(sc.Chosen(sh, b).heat)
	}
	return []Term{
		{Name: "gpu", ValueMilli: u.gpu, WeightMilli: sign * w.GPUMilli},
		{Name: "memory", ValueMilli: u.memory, WeightMilli: sign * w.MemoryMilli},
		{Name: "cpu", ValueMilli: u.cpu, WeightMilli: sign * w.CPUMilli},
		frag,
	}, sh.policy.lost(sc, frag.ValueMilli, heat, b)
}
