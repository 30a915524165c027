// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// twoWants is a cluster of like GPUs where so many percent of the tasks want GPU memory
// and little compute and the others compute and little memory, and tasks until they ask
// for 130 % of the scarcer.
func twoWants(seed uint64, memoryPercent int) Workload {
	rng := rand.New(rand.NewPCG(seed, 2))
	var w Workload
	for i := range 25 {
		w.Nodes = append(w.Nodes, Node{Name: fmt.Sprint("n", i), CPUMilli: 96000, MemoryMiB: 786432, GPUs: 8, Model: "A100"})
	}
	computeWants, memoryWants := []int64{300, 400, 500, 700, 900}, []int64{200, 300, 400, 500, 700}
	task := func() Task {
		t := Task{CPUMilli: 2000, MemoryMiB: 8192, GPUs: 1, GPUMilli: 50, GPUMemoryMilli: 20}
		if rng.IntN(100) < memoryPercent {
			t.GPUMemoryMilli = memoryWants[rng.IntN(len(memoryWants))]
		} else {
			t.GPUMilli = computeWants[rng.IntN(len(computeWants))]
		}
		return t
	}
	for range 3000 {
		w.History = append(w.History, task())
	}
	for compute, memory := int64(0), int64(0); max(compute, memory) < 260_000; {
		t := task()
		t.Name = fmt.Sprint(len(w.Arrivals))
		compute, memory = compute+t.GPUMilli, memory+t.GPUMemoryMilli
		w.Arrivals = append(w.Arrivals, t)
	}
	return w
}

// usedOf is how much compute and GPU memory of a cluster is in use, in percent.
func usedOf(w *Workload, p Placer) (compute, memory float64) {
	for i, s := range Replay(w.Nodes, w.Arrivals, p, frozen).Spots {
		if s.Node >= 0 {
			compute += float64(w.Arrivals[i].Demand())
			memory += float64(w.Arrivals[i].memoryDemand())
		}
	}
	all := float64(Capacity(w.Nodes)) / 100
	return compute / all, memory / all
}

// Where some tasks want compute and others GPU memory, BALANCED puts them side by side:
// both are used, each by how scarce it is.
func TestTwoDimensions(t *testing.T) {
	if testing.Short() {
		t.Skip("takes many seconds")
	}
	for _, c := range []struct {
		percent int     // of the tasks want memory
		least   float64 // compute and memory together, in percent; best-fit has 161.8, 141.6 and 156.7
		scarcer float64 // at least so much of the scarcer
	}{{50, 177, 92}, {30, 141.5, 97}, {70, 166, 88}} {
		const seeds = 4
		var compute, memory, fit float64
		for seed := range uint64(seeds) {
			w := twoWants(seed, c.percent)
			x, y := usedOf(&w, planned(t, &w, place.PolicyBalanced, place.DefaultWeights()))
			compute, memory = compute+x/seeds, memory+y/seeds
			x, y = usedOf(&w, NewBestFit(w.Nodes))
			fit += (x + y) / seeds
		}
		t.Logf("%d %%: compute %.1f %%, memory %.1f %%, together %.1f; best-fit %.1f", c.percent, compute, memory, compute+memory, fit)
		if compute+memory < max(c.least, fit) || max(compute, memory) < c.scarcer {
			t.Errorf("%d %% want memory: compute %.1f %% and memory %.1f %% used, want %.1f together and %.1f of the scarcer", c.percent, compute, memory, max(c.least, fit), c.scarcer)
		}
	}
}
