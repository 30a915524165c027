// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// exportedFile opens one of the files that a test of the service's export wrote.
func exportedFile(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "scheduler", "cmd", "nomad-gpu-scheduler", "testdata", "export", name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func exportedCluster(t *testing.T) ([]Node, []Task) {
	t.Helper()
	nodes, err := ReadNodes(exportedFile(t, "nodes.csv"))
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := ReadTasks(exportedFile(t, "tasks.csv"))
	if err != nil {
		t.Fatal(err)
	}
	return nodes, tasks
}

func TestExportedClustersAreRead(t *testing.T) {
	nodes, tasks := exportedCluster(t)
	if len(nodes) != 2 || nodes[0] != (Node{Name: "n1", CPUMilli: 64000, MemoryMiB: 65536, GPUs: 1, Model: "A100", GPUMemoryMiB: 4096}) {
		t.Errorf("nodes %+v", nodes)
	}
	want := []Task{
		{Name: "first", CPUMilli: 500, MemoryMiB: 256, GPUs: 1, GPUMilli: 250, GPUMemoryMilli: 500, Models: []string{"A100"}, RunSeconds: 100, Priority: 60, Queue: "team", MinRunSeconds: 120},
		{Name: "old", ArriveSecond: 5, CPUMilli: 500, MemoryMiB: 256, GPUs: 1, GPUMilli: 1000, GPUMemoryMilli: 1000, RunSeconds: 10, Priority: 50, Queue: "team", MinRunSeconds: 120},
		{Name: "held", ArriveSecond: 10, CPUMilli: 500, MemoryMiB: 256, GPUs: 1, GPUMilli: 1000, GPUMemoryMilli: 1000, Models: []string{"A100"}, RunSeconds: 100, Priority: 60, Queue: "team", MinRunSeconds: 120},
		{Name: "blocked", ArriveSecond: 20, CPUMilli: 500, MemoryMiB: 256, GPUs: 1, GPUMilli: 1000, GPUMemoryMilli: 1000, Models: []string{"T4"}, RunSeconds: 100, Priority: 30, Queue: "guests"},
		{Name: "again", ArriveSecond: 149, CPUMilli: 500, MemoryMiB: 256, GPUs: 1, GPUMilli: 1000, GPUMemoryMilli: 1000, Models: []string{"A100"}, RunSeconds: 50, Priority: 60, Queue: "team", MinRunSeconds: 120},
		{Name: "default/waits/g/0", ArriveSecond: 220, CPUMilli: 700, MemoryMiB: 300, GPUs: 1, GPUMilli: 900, GPUMemoryMilli: 250, RunSeconds: 60, LimitSeconds: 60, Priority: 60, Queue: "team", MinRunSeconds: 120},
	}
	for i := range max(len(tasks), len(want)) {
		if i >= len(tasks) || i >= len(want) || !reflect.DeepEqual(tasks[i], want[i]) {
			t.Fatalf("task %d: got\n%+v\nwant\n%+v", i, tasks, want)
		}
	}
	quotas, err := ReadQueues(exportedFile(t, "quotas.csv"))
	if err != nil || len(quotas) != 2 || quotas[1] != (place.Queue{Name: "team", GuaranteeMilli: 2000, LimitMilli: 2000}) {
		t.Errorf("quotas %+v, %v", quotas, err)
	}
}

// What if the queue had one GPU instead of two: tasks of an exported cluster wait for it.
func TestQuotasChangeTheWaitsOfAnExportedCluster(t *testing.T) {
	nodes, tasks := exportedCluster(t)
	at := slices.IndexFunc(tasks, func(t Task) bool { return t.Name == "old" })
	for limit, want := range map[int64]float64{2000: 0, 1000: 305} { // milli, and how long a task waits that comes after those of higher priority
		p, err := NewPlanned(nodes, tasks, place.PolicyBalanced, place.DefaultWeights())
		if err != nil {
			t.Fatal(err)
		}
		r, err := Live(nodes, tasks, p, LiveOptions{Queue: true, All: true, Quotas: []place.Queue{{Name: "team", GuaranteeMilli: limit, LimitMilli: limit}, {Name: "guests"}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Starts[at].Second - tasks[at].ArriveSecond; got != want {
			t.Errorf("with %d milli it waits %v s, want %v: %+v", limit, got, want, r.Starts)
		}
	}
}
