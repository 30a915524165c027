// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// ascending is work that fills a cluster in the order of its size, from CPU-only tasks to such
// of eight GPUs, which take half of it.
func ascending() Workload {
	var w Workload
	for i := range 150 {
		w.Nodes = append(w.Nodes, Node{Name: fmt.Sprint("n", i), CPUMilli: 96000, MemoryMiB: 393216, GPUs: 8, Model: []string{"A100", "V100"}[i%2]})
	}
	add := func(count int, t Task) {
		for range count {
			t.Name = fmt.Sprint(len(w.Arrivals))
			w.Arrivals = append(w.Arrivals, t)
		}
	}
	add(300, Task{CPUMilli: 4000, MemoryMiB: 8192})
	add(500, Task{CPUMilli: 3000, MemoryMiB: 8192, GPUs: 1, GPUMilli: 200})
	add(300, Task{CPUMilli: 6000, MemoryMiB: 16384, GPUs: 1, GPUMilli: 450})
	add(400, Task{CPUMilli: 11000, MemoryMiB: 32768, GPUs: 1, GPUMilli: 1000})
	add(75, Task{CPUMilli: 88000, MemoryMiB: 262144, GPUs: 8, GPUMilli: 1000})
	return w
}

// With arrivals in the order of their size and no history the first say nothing of the last:
// careful prices keep more room for these than those of arrivals that are alike, and more
// than BestFit, which packs.
func TestCarefulPricesOfAscendingArrivals(t *testing.T) {
	w := ascending()
	placed := func(weights place.Weights) float64 {
		p, err := NewPlanned(w.Nodes, nil, place.PolicyBalanced, weights)
		if err != nil {
			t.Fatal(err)
		}
		r := Replay(w.Nodes, w.Arrivals, p, frozen)
		return r.At(100)
	}
	never, late := place.DefaultWeights(), place.DefaultWeights()
	never.OddPrices, never.EarlyMilli, late.EarlyMilli = 0, 1001, 1001
	bestFit := Replay(w.Nodes, w.Arrivals, NewBestFit(w.Nodes), frozen)
	got := map[string]float64{"careful": placed(place.DefaultWeights()), "not before whole GPUs": placed(late), "never": placed(never), "BestFit": bestFit.At(100)}
	t.Log(got)
	for other, least := range map[string]float64{"never": 10, "not before whole GPUs": 2, "BestFit": 0} {
		if got["careful"] < got[other]+least {
			t.Errorf("%.2f%% of the GPUs are placed with careful prices, %s %.2f%%", got["careful"], other, got[other])
		}
	}
}
