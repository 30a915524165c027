// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// crowded is a cluster that is asked for as much as it has, by tasks of one to eight GPUs
// that run the longer the more they take, each size within a factor of ten or so.
func crowded() Workload {
	rng := rand.New(rand.NewPCG(1, 3))
	var w Workload
	for i := range 12 {
		w.Nodes = append(w.Nodes, Node{Name: fmt.Sprint("n", i), CPUMilli: 96000, MemoryMiB: 786432, GPUs: 8, Model: "A100"})
	}
	for now := 0.0; len(w.Arrivals) < 5000; {
		t := Task{Name: fmt.Sprint(len(w.Arrivals)), CPUMilli: 1000, MemoryMiB: 1024, GPUs: []int{1, 1, 1, 2, 4, 8}[rng.IntN(6)], GPUMilli: 1000}
		now += rng.ExpFloat64() * 122
		t.ArriveSecond, t.RunSeconds = now, float64(t.GPUs)*(100+900*rng.Float64())
		w.Arrivals = append(w.Arrivals, t)
	}
	w.History = w.Arrivals
	return w
}

// Estimates of starts hold what they say, and lifetimes that are shuffled or missing, and
// limits that are ten times too long, cost little of it.
func TestWrongLifetimesCostLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("takes many seconds")
	}
	w := crowded()
	rng := rand.New(rand.NewPCG(1, 4))
	long := func(t *Task) time.Duration { return seconds64(10 * t.RunSeconds) }
	for _, c := range []struct {
		name    string
		learned func(*Task) *Task
		limit   func(*Task) time.Duration
		within  float64 // percent
	}{
		{"as they are", nil, nil, 85},
		{"with true limits", nil, func(t *Task) time.Duration { return seconds64(t.RunSeconds) }, 85},
		{"with limits ten times too long", nil, long, 85},
		{"every second missing", func(t *Task) *Task {
			if rng.IntN(2) == 0 {
				return nil
			}
			return t
		}, nil, 85},
		{"shuffled among the sizes", func(t *Task) *Task {
			other := *t
			other.GPUs = w.Arrivals[rng.IntN(len(w.Arrivals))].GPUs
			return &other
		}, nil, 85},
		{"limits ten times too long alone", func(*Task) *Task { return nil }, long, 85},
	} {
		r, err := Live(w.Nodes, w.Arrivals, planned(t, &w, place.PolicyBalanced, place.DefaultWeights()), LiveOptions{Queue: true, Outlook: 1, learned: c.learned, limit: c.limit})
		if err != nil {
			t.Fatal(err)
		}
		o := r.Outlook
		t.Logf("%s: %+v", c.name, *o)
		if o.Estimates < 200 || o.Within < c.within {
			t.Errorf("%s: of %d estimates %.0f %% held, want %.0f %%", c.name, o.Estimates, o.Within, c.within)
		}
	}
}
