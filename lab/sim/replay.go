// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"math"
	"slices"
	"time"
)

// Placer is a policy under test. Times are seconds of the trace.
type Placer interface {
	// Arrive tells of a task that has arrived, before its first Place.
	Arrive(t *Task, now float64)
	// Place decides where a task goes and books it; ok is false when there is no
	// room for it.
	Place(t *Task, now float64) (spot Spot, ok bool)
	// End frees what a task holds.
	End(t *Task, spot Spot, now float64)
}

// Spot is where a task went: a node and the GPUs on it, by position.
type Spot struct {
	Node int
	GPUs []int
}

// Result is what a replay measured.
type Result struct {
	Spots    []Spot // per arrival; Node -1 when rejected
	Arrivals int
	Placed   int
	Rejected int
	// RejectedCPUOnly counts rejected tasks without GPUs.
	RejectedCPUOnly int
	Curve           []Point // one per whole percent of arrived demand
	FinalPercent    float64
	Speed           Speed
}

// Point is the allocation when so much had arrived, both in percent of
// capacity. In plots over time, Arrived is a time.
type Point struct {
	Arrived   int
	Allocated float64
}

// At returns the allocation when that percentage had arrived, or NaN when it
// never did. The last allocation holds where one arrival skips percentages,
// as it does on small clusters; before the first it is 0.
func (r *Result) At(percent int) float64 {
	allocated := 0.0
	for _, p := range r.Curve {
		if p.Arrived > percent {
			return allocated
		}
		allocated = p.Allocated
		if p.Arrived == percent {
			return allocated
		}
	}
	return math.NaN()
}

// Replay runs a sequence of arrivals through a policy. now is read around every
// Place; pass time.Now to measure speed.
func Replay(nodes []Node, arrivals []Task, p Placer, now func() time.Time) Result {
	r := Result{Arrivals: len(arrivals), Spots: make([]Spot, len(arrivals))}
	var arrived, used int64
	capacity := Capacity(nodes)
	times := make([]time.Duration, len(arrivals))
	var c curve
	reading := costOf(now)
	for i := range arrivals {
		t := &arrivals[i]
		start := now()
		p.Arrive(t, 0)
		spot, ok := p.Place(t, 0)
		times[i] = max(0, now().Sub(start)-reading)
		arrived += t.Demand()
		if ok {
			used += t.Demand()
			r.Placed++
		} else {
			spot = Spot{Node: -1}
			r.reject(t)
		}
		r.Spots[i] = spot
		c.add(arrived, used, capacity)
	}
	r.Curve = c.points()
	r.FinalPercent = percent(used, capacity)
	r.Speed = speedOf(times)
	return r
}

// costOf is how long it takes to read a clock; some are system calls.
func costOf(now func() time.Time) time.Duration {
	least := time.Hour
	for range 100 {
		start := now()
		least = min(least, now().Sub(start))
	}
	return least
}

func (r *Result) reject(t *Task) {
	r.Rejected++
	if t.GPUs == 0 {
		r.RejectedCPUOnly++
	}
}

// Speed is how long decisions took.
type Speed struct {
	PerSecond           float64
	Mean, P50, P99, Max time.Duration
}

func speedOf(times []time.Duration) (s Speed) {
	if len(times) == 0 {
		return s
	}
	var sum time.Duration
	for _, d := range times {
		sum += d
	}
	slices.Sort(times)
	s.Mean, s.P50, s.P99, s.Max = sum/time.Duration(len(times)), times[len(times)/2], times[nearestRank(len(times), 99)], times[len(times)-1]
	if sum > 0 {
		s.PerSecond = float64(len(times)) / sum.Seconds()
	}
	return s
}

func percent(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// curve averages the allocation over all arrivals that round to the same whole
// percent of arrived demand, as the published evaluation does.
type curve struct {
	sum   []float64
	count []int
}

func (c *curve) add(arrived, used, capacity int64) {
	at := int(math.RoundToEven(percent(arrived, capacity)))
	for len(c.sum) <= at {
		c.sum, c.count = append(c.sum, 0), append(c.count, 0)
	}
	c.sum[at] += math.Round(percent(used, capacity)*100) / 100
	c.count[at]++
}

func (c *curve) points() []Point {
	var ps []Point
	for at := range c.sum {
		if c.count[at] > 0 {
			ps = append(ps, Point{at, c.sum[at] / float64(c.count[at])})
		}
	}
	return ps
}
