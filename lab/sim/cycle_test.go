// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// The service's loop on a model of Nomad has written down what it does with a trace (TestReplay of package
// reconcile): the replay of the trace has the same starts, holds and evictions, on the same nodes.
func TestReplayDecidesAsTheService(t *testing.T) {
	dir := filepath.Join("..", "..", "scheduler", "reconcile", "testdata", "replay")
	f, err := os.Open(filepath.Join(dir, "tasks.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tasks, err := ReadArrivals(f)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(dir, "events.golden"))
	if err != nil {
		t.Fatal(err)
	}
	var nodes []Node
	for i := range 3 {
		nodes = append(nodes, Node{Name: fmt.Sprintf("n%d", i), CPUMilli: 64000, MemoryMiB: 256 << 10, GPUs: 4, Model: "T4"})
	}
	p, err := NewPlanned(nodes, nil, place.PolicyPack, place.DefaultWeights())
	if err != nil {
		t.Fatal(err)
	}
	limits, got := DefaultLimits(), []string(nil)
	_, err = Live(nodes, tasks, p, LiveOptions{
		Queue: true, All: true, HalfLife: config.Default().HalfLife, Quotas: []place.Queue{{Name: "a", GuaranteeMilli: 6000}, {Name: "b", GuaranteeMilli: 6000}}, Limits: &limits,
		told: func(now float64, what string, task int, more string) {
			got = append(got, fmt.Sprintf("%.0f %s %s/%s%s", now, what, tasks[task].Queue, tasks[task].Name, more))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	compareEvents(t, strings.Split(strings.TrimSpace(string(want)), "\n"), got)
}

// compareEvents compares what happened, whose order within a moment does not count.
func compareEvents(t *testing.T, want, got []string) {
	t.Helper()
	moment := func(s string) string { at, _, _ := strings.Cut(s, " "); return at }
	for len(want)+len(got) > 0 {
		at := ""
		if len(got) > 0 {
			at = moment(got[0])
		}
		if len(want) > 0 {
			at = moment(want[0])
		}
		var w, g []string
		for len(want) > 0 && moment(want[0]) == at {
			w, want = append(w, want[0]), want[1:]
		}
		for len(got) > 0 && moment(got[0]) == at {
			g, got = append(g, got[0]), got[1:]
		}
		slices.Sort(w)
		slices.Sort(g)
		if !slices.Equal(w, g) {
			t.Fatalf("the service:\n%s\nthe replay:\n%s", strings.Join(w, "\n"), strings.Join(append(g, got[:min(5, len(got))]...), "\n"))
		}
	}
}
