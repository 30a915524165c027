// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
)

// LiveSampling says how [SampleLive] draws a workload whose tasks end.
type LiveSampling struct {
	Seed  uint64
	Mix   Mix
	Nodes int // number of nodes, at random; 0: all
	// Loads are the GPU work that is offered, in percent of what the nodes can do: one
	// after the other, each for an equal part of the time.
	Loads      []float64
	Hours      float64 // until the last arrival
	Tasks      int     // the most tasks
	CapSeconds float64 // no task of the list runs longer
	// Exponential draws durations from an exponential distribution of the same mean per
	// size. They may be longer than CapSeconds.
	Exponential bool
	Wave        float64 // the load swings by this part, with a period of WavePeriod
}

// DefaultLiveSampling is the protocol of docs/design/placement-study.md.
func DefaultLiveSampling() LiveSampling {
	return LiveSampling{Seed: 1, Nodes: 600, Loads: []float64{90}, Hours: 16, Tasks: 60_000, CapSeconds: 4 * 3600}
}

// WavePeriod is the time between two peaks of load, in seconds.
const WavePeriod = 4 * 3600

// shortest is the least that a task runs, in seconds.
const shortest = 60

// SampleLive draws a workload whose tasks end: tasks are drawn from the variant
// of a list, each as likely, and arrive at random (a Poisson process) at the
// rate at which they offer the load. How long one runs is drawn from the tasks
// of another list with as many GPUs and the same share, where it has 20 with
// times, else from those of the same [Class]; with Exponential, only their mean counts.
// The variant is the history.
func SampleLive(nodes []Node, list, timed []Task, s LiveSampling) (Workload, error) {
	w, err := sampleLive(nodes, list, timed, s)
	if err != nil {
		return w, fmt.Errorf("draw workload: %w", err)
	}
	return w, nil
}

func sampleLive(nodes []Node, list, timed []Task, s LiveSampling) (w Workload, err error) {
	stream := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(s.Seed, n)) }
	if w.History, err = s.Mix.variant(stream(drawVariant), nodes, list); err != nil {
		return w, err
	}
	if s.Nodes < 0 || s.Nodes > len(nodes) {
		return w, fmt.Errorf("nodes: %d is not valid (0, which is all, to %d, which the list has)", s.Nodes, len(nodes))
	}
	for _, i := range stream(drawOrder).Perm(len(nodes)) {
		if s.Nodes == 0 || len(w.Nodes) < s.Nodes {
			w.Nodes = append(w.Nodes, nodes[i])
		}
	}
	capacity := float64(Capacity(w.Nodes))
	if capacity == 0 {
		return w, errors.New("no node has a GPU")
	}
	d := newDurations(timed, s.CapSeconds)
	work, means := 0.0, make([]float64, len(w.History))
	for i := range w.History {
		pool := d.of(&w.History[i])
		if len(pool) == 0 {
			return w, fmt.Errorf("no task of %v GPUs has a duration to draw from", ClassOf(&w.History[i]))
		}
		means[i] = meanOf(pool)
		work += float64(w.History[i].Demand()) * means[i] / float64(len(w.History))
	}
	if work == 0 {
		return w, errors.New("no task asks for a GPU")
	}
	rng := stream(drawArrivals)
	run := func(i int) float64 {
		if s.Exponential {
			return max(1, math.Round(rng.ExpFloat64()*means[i]*1000)) / 1000
		}
		pool := d.of(&w.History[i])
		return pool[rng.IntN(len(pool))]
	}
	at, part := 0.0, s.Hours*3600/float64(len(s.Loads))
	for p, load := range s.Loads {
		rate, end := load/100*capacity/work, part*float64(p+1)
		for len(w.Arrivals) < s.Tasks {
			now := rate * (1 + s.Wave*math.Sin(2*math.Pi*at/WavePeriod))
			if at += rng.ExpFloat64() / now; at > end {
				at = end // the next part begins; a Poisson process has no memory
				break
			}
			i := rng.IntN(len(w.History))
			t := w.History[i]
			t.Name = fmt.Sprintf("task-%06d", len(w.Arrivals))
			t.ArriveSecond, t.RunSeconds = math.Round(at*1000)/1000, run(i)
			w.Arrivals = append(w.Arrivals, t)
		}
	}
	if len(w.Arrivals) == 0 {
		return w, errors.New("no task arrives in so short a time")
	}
	return w, nil
}

func meanOf(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

// durations are how long tasks ran, by size.
type durations struct {
	bySize  map[gpuSize][]float64
	byClass [classes][]float64
}

type gpuSize struct {
	gpus  int
	milli int64
}

// enoughDurations is how many durations of a size say more than its class.
const enoughDurations = 20

func newDurations(timed []Task, most float64) *durations {
	d := &durations{bySize: map[gpuSize][]float64{}}
	for i := range timed {
		t := &timed[i]
		if t.RunSeconds <= 0 {
			continue
		}
		ran := min(max(t.RunSeconds, shortest), most)
		size := gpuSize{t.GPUs, t.GPUMilli}
		d.bySize[size] = append(d.bySize[size], ran)
		d.byClass[ClassOf(t)] = append(d.byClass[ClassOf(t)], ran)
	}
	return d
}

func (d *durations) of(t *Task) []float64 {
	if own := d.bySize[gpuSize{t.GPUs, t.GPUMilli}]; len(own) >= enoughDurations {
		return own
	}
	return d.byClass[ClassOf(t)]
}
