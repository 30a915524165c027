// SPDX-License-Identifier: MPL-2.0

package outlook

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
)

// waits is work that asks for whole GPUs and runs for so many minutes; 0: it is not known how long.
func waits(t *testing.T, gpus, minutes int) Waiter {
	return Waiter{Request: ask(t, "w", fmt.Sprint(gpus)), Count: 1, Left: certain(minutes)}
}

// Each waiter keeps the node where it is expected to fit first, of those that are not kept for an earlier one.
func TestEachWaiterKeepsANode(t *testing.T) {
	for name, c := range map[string]struct {
		runs map[string][]int // minutes of what runs on nodes of four GPUs
		gpus []int            // of each waiter
		want []int            // nodes; -1: none
		at   []int            // minutes at which the first waiter is expected to fit, by node; -1: never
	}{
		"the first where it fits":     {map[string][]int{"a": {50, 40, 30, 20}, "b": {35, 25, 60, 60}}, []int{1}, []int{0}, []int{20, 25}},
		"several ends of one node":    {map[string][]int{"a": {50, 40, 30, 20}, "b": {35, 25, 60, 60}}, []int{2}, []int{0}, []int{30, 35}},
		"of all of them":              {map[string][]int{"a": {50, 40, 90, 20}, "b": {35, 25, 60, 10}}, []int{4}, []int{1}, []int{90, 60}},
		"one each":                    {map[string][]int{"a": {50, 40, 30, 20}, "b": {35, 25, 60, 60}}, []int{1, 1, 1}, []int{0, 1, -1}, []int{20, 25}},
		"one each, of other shapes":   {map[string][]int{"a": {50, 40, 30, 20}, "b": {35, 25, 60, 60}}, []int{2, 1, 2}, []int{0, 1, -1}, []int{30, 35}},
		"what is not known to end":    {map[string][]int{"a": {50, 0, 0, 20}, "b": {0, 0, 60, 60}}, []int{3, 2}, []int{-1, 0}, []int{-1, -1}},
		"one node where nothing ends": {map[string][]int{"a": {0, 0, 0, 0}, "b": {45, 0, 0, 0}}, []int{1, 1}, []int{1, -1}, []int{45}},
	} {
		s := snapshot(t, placetest.Node("a", "A100", 4), placetest.Node("b", "A100", 4))
		left := busy(t, s, "a", c.runs["a"]...)
		busy(t, s, "b", c.runs["b"]...)
		var waiting []Waiter
		for _, gpus := range c.gpus {
			waiting = append(waiting, waits(t, gpus, 0))
		}
		f := Foresee(s, waiting, left)
		f.Outlook()
		if !slices.Equal(f.kept, c.want) {
			t.Errorf("%s: kept %v, want %v", name, f.kept, c.want)
		}
		if len(f.open) != 0 {
			t.Errorf("%s: nodes %v have room", name, f.open)
		}
		var at []int
		for from := 0; from < len(f.ends); {
			to := from
			for to < len(f.ends) && f.ends[to].room == f.ends[from].room {
				to++
			}
			ends := slices.Clone(f.ends[from:to])
			slices.SortFunc(ends, func(a, b ending) int { return int(a.left.At(0.5) - b.left.At(0.5)) })
			if d := f.fitsAfter(f.distinct[0], ends); d < never {
				at = append(at, int(d.Minutes()))
			} else {
				at = append(at, -1)
			}
			from = to
		}
		if !slices.Equal(at, c.at) {
			t.Errorf("%s: it fits after %v minutes, want %v", name, at, c.at)
		}
	}
}

// What starts in a play ends there in the order of its ends, whatever the order of the starts, beside what ran.
func TestWhatStartsEndsInOrder(t *testing.T) {
	for name, c := range map[string]struct {
		runs    []int // on a node of four GPUs
		waiting []int // minutes that each runs, on one GPU
		want    []int
	}{
		"three that start at once":   {[]int{0}, []int{30, 10, 20, 0, 0, 0}, []int{0, 0, 0, 10, 20, 30}},
		"four":                       {nil, []int{40, 30, 20, 10, 0, 0, 0, 0}, []int{0, 0, 0, 0, 10, 20, 30, 40}},
		"beside what ran":            {[]int{15, 0}, []int{30, 10, 0, 0, 0}, []int{0, 0, 10, 15, 30}},
		"again and again":            {[]int{0, 0, 0}, []int{5, 6, 7, 8, 0}, []int{0, 5, 11, 18, 26}},
		"those of one end at a time": {[]int{0, 0}, []int{10, 10, 5, 5, 0}, []int{0, 0, 10, 10, 15}},
	} {
		s := snapshot(t, placetest.Node("a", "A100", 4))
		left := busy(t, s, "a", c.runs...)
		var waiting []Waiter
		for _, minutes := range c.waiting {
			waiting = append(waiting, waits(t, 1, minutes))
		}
		for i, o := range Foresee(s, waiting, left).Outlook() {
			if want := time.Duration(c.want[i]) * time.Minute; o != (Outlook{true, want, want, want}) {
				t.Errorf("%s: waiter %d: %+v, want %s", name, i, o, want)
			}
		}
	}
}

// What a task takes of each kind of GPU is known when it is foreseen: how kinds change later does not count.
func TestNeedsAreForeseen(t *testing.T) {
	s := snapshot(t, placetest.Node("a", "A100", 1))
	left := busy(t, s, "a", 10)
	f := Foresee(s, []Waiter{waits(t, 1, 0)}, left)
	s.Kinds[0].Mode, s.Kinds[0].Replicas = "shared", 4
	if got := f.Outlook()[0]; got.Likely != 10*time.Minute {
		t.Errorf("it starts after %s", got.Likely)
	}
	if got := Foresee(cluster.NewSnapshot(), []Waiter{waits(t, 1, 0)}, left).Outlook()[0]; got.Known {
		t.Errorf("without any node it starts: %+v", got)
	}
}

// Every play has another chance for each task, and all plays together each of as many once.
func TestChancesAreSpread(t *testing.T) {
	for _, luck := range []uint64{0, 3, 7, 1 << 63, math.MaxUint64 - 24} {
		seen := map[float64]bool{}
		for number := range 8 {
			g := game{number: number, plays: 8}
			c := g.chance(luck)
			if at := c*8 - 0.5; at != math.Trunc(at) || at < 0 || at > 7 {
				t.Errorf("chance %v of eight", c)
			}
			seen[c] = true
		}
		if len(seen) != 8 {
			t.Errorf("%d chances in eight plays", len(seen))
		}
	}
}

// In all plays together what is in the way ends at another time in each.
func TestEveryPlayIsAnother(t *testing.T) {
	s := snapshot(t, placetest.Node("a", "A100", 1))
	busy(t, s, "a", 1)
	l := &forecast.Lifetimes{}
	for m := range 1000 {
		l.Ended(time.Duration(m+1)*time.Second, "it")
	}
	for _, want := range []int{leastOutlooks, outlooks} {
		f := Foresee(s, []Waiter{waits(t, 1, 0)}, func(*cluster.Usage) forecast.Remaining { return l.Remaining(0, 0, "it") })
		starts := map[time.Duration]bool{}
		for n := range want {
			for _, at := range f.play(n, want) {
				starts[at] = true
			}
		}
		if len(starts) != want {
			t.Errorf("%d starts in %d plays", len(starts), want)
		}
	}
}

// Ranges are scaled by how far earlier ones were off, with some seconds of grace, within ten years.
func TestRangesAreScaled(t *testing.T) {
	for _, c := range []struct {
		actual, estimated time.Duration
		want              float64
	}{{0, 0, 1}, {10 * time.Second, 0, 2}, {0, 10 * time.Second, 0.5}, {time.Minute, time.Minute, 1}, {50 * time.Second, 20 * time.Second, 2}} {
		if got := ratio(c.actual, c.estimated); got != c.want {
			t.Errorf("%s over %s is %v, want %v", c.actual, c.estimated, got, c.want)
		}
	}
	const years = 10 * 365 * 24 * time.Hour
	for _, c := range []struct {
		d    time.Duration
		by   float64
		want time.Duration
	}{{time.Minute, 1, time.Minute}, {20 * time.Second, 2, 50 * time.Second}, {0, 3, 20 * time.Second}, {time.Minute, 0, 0}, {0, 0.5, 0}, {time.Hour, 1e9, years - grace}, {years - grace, 1, years - grace}} {
		if got := scaled(c.d, c.by); got != c.want {
			t.Errorf("%s by %v is %s, want %s", c.d, c.by, got, c.want)
		}
	}
}

// Only so many of the last estimates count, a copy goes its own way, and a start at either end of a range is in it.
func TestWhatCalibrationsRemember(t *testing.T) {
	var c Calibration
	o := Outlook{true, time.Minute, time.Hour, 2 * time.Hour}
	for i, waited := range []time.Duration{time.Minute - 1, time.Minute, time.Hour, 2 * time.Hour, 2*time.Hour + 1} {
		c.Learn(o, o, waited)
		if right, of := c.Held(); of != i+1 || right != min(i, 3) {
			t.Errorf("after %s %d of %d held", waited, right, of)
		}
	}
	twin := c.Clone()
	for i := range lately + 5 {
		c.Learn(o, o, time.Hour)
		if _, of := c.Held(); of != min(lately, 6+i) || len(c.sooner) != of || len(c.later) != of {
			t.Fatalf("%d, %d and %d are remembered of %d", of, len(c.sooner), len(c.later), 6+i)
		}
	}
	if right, of := twin.Held(); of != 5 || right != 3 || len(twin.sooner) != 5 || len(twin.later) != 5 {
		t.Errorf("of the copy %d of %d held", right, of)
	}
	if right, of := c.Held(); right != of {
		t.Errorf("%d of the last %d held", right, of)
	}
	// of 50 errors the second smallest, and the second largest
	var d Calibration
	for i := range 50 {
		d.Learn(Outlook{true, 0, 0, 0}, o, time.Duration(i)*10*time.Second)
	}
	if got := d.Correct(Outlook{true, 0, 20 * time.Second, 30 * time.Second}); got != (Outlook{true, 10 * time.Second, 20 * time.Second, 40*49*time.Second - 10*time.Second}) {
		t.Errorf("corrected to %+v", got)
	}
}
