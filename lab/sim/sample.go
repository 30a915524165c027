// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
)

// Sampling says how [Sample] draws a workload from a list of tasks.
type Sampling struct {
	Seed    uint64
	Mix     Mix
	Percent int // the arrivals ask for so much of the nodes' GPUs
}

// DefaultSampling is the published protocol: the list as it is, to 130%.
func DefaultSampling() Sampling { return Sampling{Seed: 1, Percent: 130} }

// MaxPercent is the most demand that arrivals may add up to, in percent of the
// cluster.
const MaxPercent = 10_000

// maxTasks bounds the draw: beyond it, a percentage was a slip.
const maxTasks = 1 << 20

// The draws of one seed are independent, so that another mix leaves the order
// of the nodes as it is.
const (
	drawVariant = iota + 1
	drawArrivals
	drawOrder
	drawBurst
)

// Sample draws a workload from the nodes and the task list of a trace by the
// protocol of the published comparisons: every task of the list's variant
// arrives once, in random order, then random ones again, until they ask for so
// much of the GPUs. The variant is the history, and the nodes come in a random
// order, which decides ties. The same Sampling gives the same workload.
//
// It fails when the list cannot have the mix, or nothing in it asks for GPUs.
func Sample(nodes []Node, list []Task, s Sampling) (Workload, error) {
	stream := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(s.Seed, n)) }
	if s.Percent < 1 || s.Percent > MaxPercent {
		return Workload{}, fmt.Errorf("draw workload: demand is %d%%, want 1 to %d", s.Percent, MaxPercent)
	}
	if Capacity(nodes) == 0 {
		return Workload{}, errors.New("draw workload: no node has a GPU")
	}
	variant, err := s.Mix.variant(stream(drawVariant), nodes, list)
	if err != nil {
		return Workload{}, fmt.Errorf("draw workload: %w", err)
	}
	w := Workload{History: variant}
	if w.Arrivals, err = arrivals(stream(drawArrivals), variant, Capacity(nodes)*int64(s.Percent)/100); err != nil {
		return Workload{}, fmt.Errorf("draw workload: %w", err)
	}
	for _, i := range stream(drawOrder).Perm(len(nodes)) {
		w.Nodes = append(w.Nodes, nodes[i])
	}
	return w, nil
}

// arrivals are the tasks of a list in random order, then random ones again,
// until they ask for that many milli. Tasks that come again are numbered.
func arrivals(rng *rand.Rand, list []Task, milli int64) ([]Task, error) {
	demand := demandOf(list)
	if demand == 0 {
		return nil, errors.New("no task asks for a GPU")
	}
	if takes := float64(milli) / float64(demand) * float64(len(list)); takes > maxTasks {
		return nil, fmt.Errorf("it takes %.0f tasks to ask for %d GPU milli, want %d at most", takes, milli, maxTasks)
	}
	var out []Task
	order := rng.Perm(len(list))
	times := map[string]int{}
	for sum := int64(0); sum < milli; {
		at := rng.IntN(len(list))
		if len(out) < len(order) {
			at = order[len(out)]
		}
		t := list[at]
		sum += t.Demand()
		if times[t.Name]++; times[t.Name] > 1 {
			t.Name += "#" + strconv.Itoa(times[t.Name])
		}
		out = append(out, t)
	}
	return out, nil
}

func demandOf(tasks []Task) int64 {
	var sum int64
	for i := range tasks {
		sum += tasks[i].Demand()
	}
	return sum
}
