// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// With the shortest first a task that comes later starts before a longer one that waits, but not where
// it comes late enough.
func TestTheShortestGoesFirst(t *testing.T) {
	task := func(arrive, run, limit float64, gpus int) Task {
		return Task{Name: fmt.Sprint(arrive), CPUMilli: 1000, GPUs: gpus, GPUMilli: 1000, ArriveSecond: arrive, RunSeconds: run, LimitSeconds: limit}
	}
	const hour = 3600.0
	nodes := []Node{{Name: "n", CPUMilli: 96_000, MemoryMiB: 512 << 10, GPUs: 1, Model: "T4"}}
	for name, row := range map[string]struct {
		shortest bool
		tasks    []Task
		second   bool // the third task starts before the second
	}{
		"by arrival":        {false, []Task{task(0, 60*hour, 0, 1), task(1, 4*hour, 4*hour, 1), task(2, hour, hour, 1)}, false},
		"by limit":          {true, []Task{task(0, 60*hour, 0, 1), task(1, 4*hour, 4*hour, 1), task(2, hour, hour, 1)}, true},
		"not when too late": {true, []Task{task(0, 60*hour, 0, 1), task(1, 4*hour, 4*hour, 1), task(30*hour, hour, hour, 1)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPlanned(nodes, nil, place.PolicyBalanced, place.DefaultWeights())
			if err != nil {
				t.Fatal(err)
			}
			r, err := Live(nodes, row.tasks, p, LiveOptions{Queue: true, All: true, Shortest: row.shortest})
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Starts[2].Second < r.Starts[1].Second; got != row.second {
				t.Errorf("they start at %v and %v", r.Starts[1].Second, r.Starts[2].Second)
			}
		})
	}
}
