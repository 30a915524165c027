// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Two tasks of a gang wait until there is room for both, with every policy; a task behind them that
// fits goes ahead.
func TestGangsStartTogether(t *testing.T) {
	nodes := []Node{{Name: "a", CPUMilli: 64_000, MemoryMiB: 1 << 18, GPUs: 8, Model: "A100"}, {Name: "b", CPUMilli: 64_000, MemoryMiB: 1 << 18, GPUs: 8, Model: "A100"}}
	task := func(name, gang string, gpus int, at, run float64) Task {
		return Task{Name: name, Gang: gang, CPUMilli: 1000, MemoryMiB: 1024, GPUs: gpus, GPUMilli: gpuMilli, ArriveSecond: at, RunSeconds: run}
	}
	tasks := []Task{
		task("first", "", 8, 0, 100), task("g0", "g", 8, 1, 50), task("small", "", 1, 2, 10), task("g1", "g", 8, 3, 50), task("alone", "h", 1, 4, 10),
	}
	for name, p := range map[string]Placer{
		"BALANCED": planned(t, &Workload{Nodes: nodes}, place.PolicyBalanced, place.DefaultWeights()), "fgd": NewFGD(nodes, tasks), "bestfit": NewBestFit(nodes),
	} {
		r, err := Live(nodes, tasks, p, LiveOptions{Queue: true, All: true})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, s := range r.Starts {
			got = append(got, fmt.Sprintf("%s %g", tasks[i].Name, s.Second))
		}
		if want := "first 0, g0 100, small 2, g1 100, alone 4"; strings.Join(got, ", ") != want {
			t.Errorf("%s: %s, want %s", name, strings.Join(got, ", "), want)
		}
		if r.Starts[1].Spot.Node == r.Starts[3].Spot.Node {
			t.Errorf("%s: both of the gang are on node %d", name, r.Starts[1].Spot.Node)
		}
	}
	tasks[0].Priority = 50
	_, err := Live(nodes, tasks, planned(t, &Workload{Nodes: nodes}, place.PolicyBalanced, place.DefaultWeights()), LiveOptions{Queue: true})
	if err == nil || !strings.Contains(err.Error(), "replay gangs: only without priorities") {
		t.Errorf("with priorities: %v", err)
	}
}
