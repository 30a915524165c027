// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// coarse is a cluster of GPUs that are all alike, where tasks take a few coarse
// shares, and tasks at nearly as much as it can do.
func coarse(seed uint64, shares []int64, live bool) Workload {
	rng := rand.New(rand.NewPCG(seed, 1))
	var w Workload
	var mean float64
	for _, s := range shares {
		mean += float64(s) / float64(len(shares))
	}
	for i := range 40 {
		w.Nodes = append(w.Nodes, Node{Name: fmt.Sprint("n", i), CPUMilli: 96000, MemoryMiB: 786432, GPUs: 8, Model: "A100"})
	}
	const run, load = 1000, 0.97
	tasks, now := 16000, 0.0
	if !live {
		tasks = int(1.3 * 320_000 / mean)
	}
	for i := range tasks {
		t := Task{Name: fmt.Sprint(i), CPUMilli: 4000, MemoryMiB: 8192, GPUs: 1, GPUMilli: shares[rng.IntN(len(shares))]}
		if live {
			now += rng.ExpFloat64() * run * mean / (320_000 * load)
			t.ArriveSecond, t.RunSeconds = now, 1+rng.ExpFloat64()*run
		}
		w.Arrivals = append(w.Arrivals, t)
	}
	w.History = w.Arrivals
	return w
}

// coarseSlack is by how much BALANCED may be below the better of FGD and best-fit, in
// points.
const coarseSlack = 0.3

// With coarse shares, where a wish for exact fits keeps GPUs idle, BALANCED keeps as
// much of the cluster busy as the better of FGD and best-fit.
func TestCoarseShares(t *testing.T) {
	if testing.Short() {
		t.Skip("takes many seconds")
	}
	for _, shares := range [][]int64{{300, 400, 500, 700, 900}, {350, 600, 600, 700}, {200, 300, 400, 600, 800}, {250, 500, 500, 1000}} {
		for _, live := range []bool{true, false} {
			t.Run(fmt.Sprint(shares, " live=", live), func(t *testing.T) {
				var best, own float64
				const seeds = 2
				for seed := range uint64(seeds) {
					w := coarse(seed, shares, live)
					used := func(p Placer) float64 {
						if !live {
							r := Replay(w.Nodes, w.Arrivals, p, frozen)
							return r.FinalPercent / seeds
						}
						r, err := Live(w.Nodes, w.Arrivals, p, LiveOptions{})
						if err != nil {
							t.Fatal(err)
						}
						return r.UsedPercent / seeds
					}
					best += max(used(NewFGD(w.Nodes, w.History)), used(NewBestFit(w.Nodes)))
					own += used(planned(t, &w, place.PolicyBalanced, place.DefaultWeights()))
				}
				t.Logf("BALANCED %.2f %%, the better of FGD and best-fit %.2f %%", own, best)
				if own < best-coarseSlack {
					t.Errorf("BALANCED keeps %.2f %% busy, the better of FGD and best-fit %.2f %%", own, best)
				}
			})
		}
	}
}
