// SPDX-License-Identifier: MPL-2.0

package score

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// heatPrice is the cost of putting a task with this use on a GPU that is too hot for it,
// in milli.
func (sc *Scorer) heatPrice(c *cluster.GPUState, use int32) int32 {
	return int32(sc.weights.HeatMilli * int64(c.Heat(use)) / 1000)
}

// idle is the expected waste of a pool if its node had so much CPU free and
// some of its GPUs had less by what a task needs.
func (sc *Scorer) idle(b *cluster.Pool, cpu int64, gpus []int, nd *fit.Need, ws *WasteEstimator) int32 {
	if ws.Paired() {
		return sc.idleParts(b, cpu, gpus, nd, ws)
	}
	take := int32(0)
	if nd != nil {
		take = nd.Share
	}
	key := ws.Key(b.Kind, cpu).Plus(b.Shares)
	for _, i := range gpus {
		key = key.Swap(b.GPUs[i].Share, max(0, b.GPUs[i].Share-take))
	}
	idle, ok := ws.Known(key)
	if !ok {
		idle = ws.Estimate(key, b.Kind, cpu, sc.sorted(b, gpus, take))
	}
	return idle
}

// idleParts is idle where compute and memory are told apart.
func (sc *Scorer) idleParts(b *cluster.Pool, cpu int64, gpus []int, nd *fit.Need, ws *WasteEstimator) int32 {
	k := &sc.snap.Kinds[b.Kind]
	key := ws.Key(b.Kind, cpu)
	sc.parts = sc.parts[:0]
	for i := range b.GPUs {
		c := b.GPUs[i]
		if !c.Open {
			continue
		}
		if slices.Contains(gpus, i) {
			c.Milli -= int32(nd.Take.Milli)
			c.Slices -= int32(nd.Take.Slices)
			c.Replicas -= int32(nd.Take.Replicas)
			c.Tasks++
		}
		part := c.Part(k)
		key = key.Plus(forecast.KeyOfShare(int32(part)))
		sc.parts = append(sc.parts, part)
	}
	if idle, ok := ws.Known(key); ok {
		return idle
	}
	return ws.EstimateParts(key, b.Kind, cpu, sc.parts)
}

// sorted returns the shares of a pool in ascending order, some less by take.
func (sc *Scorer) sorted(b *cluster.Pool, gpus []int, take int32) []int32 {
	sc.shares = sc.shares[:0]
	for i := range b.GPUs {
		v := b.GPUs[i].Share
		if slices.Contains(gpus, i) {
			v = max(0, v-take)
		}
		sc.shares = insertSorted(sc.shares, v)
	}
	return sc.shares
}

func insertSorted(list []int32, v int32) []int32 {
	i := len(list)
	list = append(list, v)
	for ; i > 0 && list[i-1] > v; i-- {
		list[i] = list[i-1]
	}
	list[i] = v
	return list
}

// WasteNow is the expected waste of a pool as it is, remembered for its class
// until the demand changes.
func (sc *Scorer) WasteNow(b *cluster.Pool, ws *WasteEstimator) int32 {
	for int(b.Class) >= len(ws.current) {
		ws.current = append(ws.current, classWaste{born: -1})
	}
	c := &ws.current[b.Class]
	if born := sc.snap.States.List[b.Class].Born; c.born != born {
		*c = classWaste{born, sc.idle(b, b.Node.CPU, nil, nil, ws)}
	}
	return c.waste
}
