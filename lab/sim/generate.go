// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Workload is a cluster and what arrives at it.
type Workload struct {
	Nodes    []Node
	Arrivals []Task
	History  []Task // drawn from the same mix, earlier
}

// Synthetic says what [Generate] makes.
type Synthetic struct {
	Seed     uint64
	Nodes    int
	Percent  int     // arrivals add up to so much of the cluster's GPUs
	Models   float64 // percent of the GPU tasks that name models
	Live     bool    // tasks arrive and leave over time, with priorities and queues
	Teams    int     // queues "team-1" …, or 0 for none; with Live
	MeanLoad int     // percent of the cluster in demand at a time, 1 or more; with Live
}

// DefaultSynthetic is a cluster of 200 nodes filled to 130%.
func DefaultSynthetic() Synthetic {
	return Synthetic{Seed: 1, Nodes: 200, Percent: 130, Models: 10, Teams: 4, MeanLoad: 110}
}

// machineType is a line of the hardware catalog.
type machineType struct {
	weight int
	node   Node
}

var machineTypes = []machineType{
	{40, Node{CPUMilli: 96000, MemoryMiB: 786432, GPUs: 8, Model: "A100"}},
	{10, Node{CPUMilli: 128000, MemoryMiB: 1048576, GPUs: 8, Model: "H100"}},
	{20, Node{CPUMilli: 64000, MemoryMiB: 262144, GPUs: 4, Model: "V100"}},
	{25, Node{CPUMilli: 96000, MemoryMiB: 393216, GPUs: 2, Model: "T4"}},
	{5, Node{CPUMilli: 32000, MemoryMiB: 131072, GPUs: 1, Model: "A40"}},
}

// taskType is a line of the workload catalog.
type taskType struct {
	weight int
	task   Task
	run    int64 // mean run time in seconds
}

var taskTypes = []taskType{
	{12, Task{CPUMilli: 8000, MemoryMiB: 16384}, 3600},
	{10, Task{CPUMilli: 4000, MemoryMiB: 8192, GPUs: 1, GPUMilli: 100}, 28800},
	{10, Task{CPUMilli: 4000, MemoryMiB: 16384, GPUs: 1, GPUMilli: 250}, 14400},
	{12, Task{CPUMilli: 6000, MemoryMiB: 32768, GPUs: 1, GPUMilli: 500}, 7200},
	{8, Task{CPUMilli: 4000, MemoryMiB: 16384, GPUs: 1, GPUMilli: 700}, 7200},
	{38, Task{CPUMilli: 10000, MemoryMiB: 49152, GPUs: 1, GPUMilli: 1000}, 10800},
	{5, Task{CPUMilli: 18000, MemoryMiB: 98304, GPUs: 2, GPUMilli: 1000}, 21600},
	{3, Task{CPUMilli: 36000, MemoryMiB: 196608, GPUs: 4, GPUMilli: 1000}, 43200},
	{2, Task{CPUMilli: 80000, MemoryMiB: 393216, GPUs: 8, GPUMilli: 1000}, 86400},
}

// Generate makes a workload. The same Synthetic gives the same workload.
func Generate(s Synthetic) Workload {
	g := &generator{Synthetic: s, rng: rand.New(rand.NewPCG(s.Seed, 0))}
	w := Workload{}
	for i := range s.Nodes {
		w.Nodes = append(w.Nodes, g.node(i))
	}
	capacity := Capacity(w.Nodes)
	w.History = g.tasks("history", capacity)
	w.Arrivals = g.tasks("task", capacity*int64(s.Percent)/100)
	if s.Live {
		g.schedule(w.Arrivals, capacity)
	}
	return w
}

type generator struct {
	Synthetic
	rng *rand.Rand
}

func (g *generator) node(i int) Node {
	n := machineTypes[pick(g.rng, len(machineTypes), func(i int) int { return machineTypes[i].weight })].node
	n.Name = fmt.Sprintf("node-%05d", i)
	return n
}

// tasks draws tasks until they ask for that many milli.
func (g *generator) tasks(name string, milli int64) []Task {
	var out []Task
	for sum := int64(0); sum < milli; {
		tt := taskTypes[pick(g.rng, len(taskTypes), func(i int) int { return taskTypes[i].weight })]
		t := tt.task
		t.Name = fmt.Sprintf("%s-%06d", name, len(out))
		t.RunSeconds = 60 + math.Trunc(g.rng.ExpFloat64()*float64(tt.run))
		if t.GPUs > 0 && g.rng.Float64()*100 < g.Models {
			t.Models = []string{machineTypes[g.rng.IntN(3)].node.Model}
		}
		out = append(out, t)
		sum += t.Demand()
	}
	return out
}

// schedule spreads the arrivals over time so that MeanLoad percent of the
// cluster is wanted on average, and gives them priorities and queues.
func (g *generator) schedule(tasks []Task, capacity int64) {
	var work float64
	for i := range tasks {
		work += float64(tasks[i].Demand()) * tasks[i].RunSeconds
	}
	gap := work / float64(capacity) / float64(max(1, len(tasks))) * 100 / float64(g.MeanLoad)
	at := 0.0
	for i := range tasks {
		at += g.rng.ExpFloat64() * gap
		t := &tasks[i]
		t.ArriveSecond = math.Trunc(at)
		t.Priority = []int{20, 20, 50, 50, 50, 80}[g.rng.IntN(6)]
		t.MinRunSeconds = 300
		if g.Teams > 0 {
			t.Queue = fmt.Sprintf("team-%d", 1+g.rng.IntN(g.Teams))
		}
	}
}

func pick(rng *rand.Rand, n int, weight func(int) int) int {
	total := 0
	for i := range n {
		total += weight(i)
	}
	x := rng.IntN(total)
	for i := range n {
		if x -= weight(i); x < 0 {
			return i
		}
	}
	return n - 1
}
