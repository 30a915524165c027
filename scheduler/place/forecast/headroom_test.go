// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"math"
	"testing"
	"time"
)

func TestRatesOfLargeTasks(t *testing.T) {
	const hours = 10
	var a Arrivals
	start := time.Unix(0, 0)
	for m := range hours * 60 {
		at := start.Add(time.Duration(m) * time.Minute)
		a.Note(1, true, 50, at)
		a.Note(8, false, 50, at) // parts of eight GPUs
		if m%6 == 0 {
			a.Note(8, true, 50, at)
		}
		if m%12 == 0 {
			a.Note(8, true, 70, at)
		}
	}
	for _, tc := range []struct {
		gpus, priority int
		perHour        float64
	}{
		{8, 0, 15}, {8, 50, 15}, {8, 51, 5}, {8, 70, 5}, {8, 71, 0}, {4, 0, 0}, {1, 0, 0},
	} {
		if got := a.PerSecond(tc.gpus, tc.priority) * 3600; math.Abs(got-tc.perHour) > 0.05*tc.perHour {
			t.Errorf("%d GPUs, priority %d: %.2f per hour, want %.2f", tc.gpus, tc.priority, got, tc.perHour)
		}
	}
	a.Note(1, true, 50, start) // a clock that went back
	if got := a.PerSecond(8, 0) * 3600; math.Abs(got-15) > 1 {
		t.Errorf("%.2f per hour after the clock went back", got)
	}
	a.Note(1, true, 50, start.Add(30*time.Hour))
	if got := a.PerSecond(8, 0); got != 0 || len(a.tasks) != 0 {
		t.Errorf("%g per second 20 hours later, and %d sizes are remembered", got, len(a.tasks))
	}
}

func TestARateNeedsSeveralArrivals(t *testing.T) {
	var a Arrivals
	at := time.Unix(0, 0)
	for i := range 6 {
		if got := a.PerSecond(8, 0); got > 0 {
			t.Errorf("%g per second after %d tasks", got, i)
		}
		at = at.Add(time.Minute)
		a.Note(8, true, 0, at)
	}
	if a.PerSecond(8, 0) == 0 {
		t.Error("no rate after six tasks")
	}
}

func TestHeadroomGrowsWithTheRootOfTheRate(t *testing.T) {
	for _, tc := range []struct {
		perSecond, z float64
		longest      time.Duration
		n, m         int
		want         float64
	}{
		{0.01, 1, 50 * time.Second, 0, 8, 1},
		{0.04, 1, 50 * time.Second, 0, 8, 2},
		{0.01, 3, 200 * time.Second, 0, 8, 6},
		{0.01, 1, 50 * time.Second, 4, 8, 0.75},
		{0.01, 1, 50 * time.Second, 8, 8, 0},
		{0, 3, time.Hour, 1, 8, 0},
		{0.01, 3, 0, 1, 8, 0},
	} {
		if got := Headroom(tc.perSecond, tc.z, tc.longest, tc.n, tc.m); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%+v: %g", tc, got)
		}
	}
}
