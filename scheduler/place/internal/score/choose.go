// SPDX-License-Identifier: MPL-2.0

package score

import (
	"cmp"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// Task is a shape of requests and the policy by which it is placed.
type Task struct {
	*fit.Shape
	policy policy
}

// NewTask places a shape by a policy.
func NewTask(sh *fit.Shape, by fit.Policy) *Task { return &Task{sh, policies[by]} }

// Choice is which GPUs of a pool a task would get and what that does.
type Choice struct {
	GPUs  []int // in ascending order; valid until the next choose
	waste int32 // waste added, milli
	heat  int32 // price of GPUs that are too hot for it, milli
	Idle  int32 // idle GPUs afterwards
}

// choose picks the GPUs of a pool that add the least waste by an estimate; ties
// go to the lowest index. The pool must fit the shape.
func (sc *Scorer) choose(sh *Task, b *cluster.Pool, ws *WasteEstimator) Choice {
	now := sc.WasteNow(b, ws)
	cpu := b.Node.CPU - sh.Req.CPUMHz
	switch sh.Req.GPUs {
	case 0:
		return Choice{waste: sc.idle(b, cpu, nil, nil, ws) - now, Idle: b.Idle}
	case 1:
		return sc.chooseOne(sh, b, ws, cpu, now)
	}
	return sc.chooseMany(sh, b, ws, cpu, now)
}

// chooseOne compares the GPUs with different free capacity.
func (sc *Scorer) chooseOne(sh *Task, b *cluster.Pool, ws *WasteEstimator, cpu int64, now int32) Choice {
	nd := sh.Need(sc.snap, b.Kind)
	best, at := int32(0), -1
	for i := range b.GPUs {
		c := &b.GPUs[i]
		if !nd.Fits(c) || !sh.Suits(b, i) || sh.Meets == nil && sh.Req.Beside == fit.BesideAny && seenAlike(b.GPUs[:i], c, nd, ws.Paired()) {
			continue
		}
		if rank := sh.policy.prefer(sc, b, i, nd, cpu, ws) + sc.heatPrice(c, nd.Use); at < 0 || rank < best {
			best, at = rank, i
		}
	}
	sc.gpus = append(sc.gpus[:0], at)
	ch := Choice{GPUs: sc.gpus, Idle: b.Idle, waste: sc.idle(b, cpu, sc.gpus, nd, ws) - now, heat: sc.heatPrice(&b.GPUs[at], nd.Use)}
	if b.GPUs[at].Share == cluster.GPUMilli {
		ch.Idle--
	}
	return ch
}

// seenAlike reports whether one of the GPUs is as free and as hot, also with the need, which
// it holds.
func seenAlike(gpus []cluster.GPUState, as *cluster.GPUState, nd *fit.Need, paired bool) bool {
	for i := range gpus {
		same := gpus[i].Share == as.Share && (!paired || gpus[i].Milli == as.Milli && gpus[i].Slices == as.Slices)
		if same && gpus[i].Hot == as.Hot && gpus[i].Heat(nd.Use) == as.Heat(nd.Use) && nd.Fits(&gpus[i]) {
			return true
		}
	}
	return false
}

// coolest leaves out of the chosen GPUs those that are too hot, as far as enough are left, the
// coolest first.
func (sc *Scorer) coolest(b *cluster.Pool, count int, nd *fit.Need) []int {
	price := func(i int) int32 { return sc.heatPrice(&b.GPUs[i], nd.Use) }
	if !slices.ContainsFunc(sc.gpus, func(i int) bool { return price(i) > 0 }) {
		return sc.gpus
	}
	slices.SortStableFunc(sc.gpus, func(x, y int) int { return cmp.Compare(price(x), price(y)) })
	hot := slices.IndexFunc(sc.gpus, func(i int) bool { return price(i) > 0 })
	return sc.gpus[:max(hot, count)]
}

// chooseMany takes the tightest GPUs that fit, and of equal ones those that
// are closest to each other.
func (sc *Scorer) chooseMany(sh *Task, b *cluster.Pool, ws *WasteEstimator, cpu int64, now int32) Choice {
	nd := sh.Need(sc.snap, b.Kind)
	sc.gpus = sc.gpus[:0]
	for i := range b.GPUs {
		if nd.Fits(&b.GPUs[i]) && sh.Suits(b, i) {
			sc.gpus = append(sc.gpus, i)
		}
	}
	if nd.Whole {
		sc.gpus = b.Nearest(sc.coolest(b, sh.Req.GPUs, nd), sh.Req.GPUs)
	} else {
		sign := int32(sh.policy.sign())
		rank := func(i int) int32 { return sign*b.GPUs[i].Share + sc.heatPrice(&b.GPUs[i], nd.Use) }
		slices.SortStableFunc(sc.gpus, func(x, y int) int { return cmp.Compare(rank(x), rank(y)) })
		sc.gpus = sc.gpus[:sh.Req.GPUs]
	}
	slices.Sort(sc.gpus)
	ch := Choice{GPUs: sc.gpus, Idle: b.Idle}
	for _, i := range sc.gpus {
		if b.GPUs[i].Share == cluster.GPUMilli {
			ch.Idle--
		}
	}
	ch.waste = sc.idle(b, cpu, sc.gpus, nd, ws) - now
	for _, i := range sc.gpus {
		ch.heat += sc.heatPrice(&b.GPUs[i], nd.Use)
	}
	if sh.Req.Close {
		ch.waste += int32(sc.weights.DistancePriceMilli * b.Apart(sc.gpus) / 1000)
	}
	return ch
}

var policies = [...]policy{fit.PolicyBalanced: balanced{}, fit.PolicyPack: filling{1}, fit.PolicySpread: filling{-1}}
