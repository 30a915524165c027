// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// timedList is traceList with durations, which are 100 and 300 s in turn, and 1,000 s for
// tasks of two GPUs.
func timedList() []Task {
	list := traceList()
	for i := range list {
		list[i].RunSeconds = 100 + 200*float64(i%2)
		if list[i].GPUs == 2 {
			list[i].RunSeconds = 1000
		}
	}
	return list
}

func sampledLive(t *testing.T, change func(*LiveSampling)) Workload {
	t.Helper()
	s := LiveSampling{Seed: 3, Loads: []float64{100}, Hours: 24, Tasks: 1 << 20, CapSeconds: 4 * 3600}
	change(&s)
	w, err := SampleLive(traceNodes(), timedList(), timedList(), s)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// offered is the GPU work of the tasks that arrive within a part of a day, in percent of what
// the nodes can do meanwhile.
func offered(w Workload, from, to float64) float64 {
	work := 0.0
	for i := range w.Arrivals {
		if a := &w.Arrivals[i]; a.ArriveSecond >= from*24*3600 && a.ArriveSecond < to*24*3600 {
			work += float64(a.Demand()) * a.RunSeconds
		}
	}
	return 100 * work / (float64(Capacity(w.Nodes)) * (to - from) * 24 * 3600)
}

func TestExponentialDurationsHaveTheMeansOfTheirSizes(t *testing.T) {
	w := sampledLive(t, func(s *LiveSampling) { s.Exponential = true })
	for class, mean := range map[Class]float64{ClassCPU: 200, ClassOne: 200, ClassSome: 1000} {
		n, sum, longer := 0.0, 0.0, 0.0
		for i := range w.Arrivals {
			if a := &w.Arrivals[i]; ClassOf(a) == class {
				n, sum = n+1, sum+a.RunSeconds
				if a.RunSeconds > mean {
					longer++
				}
				if a.RunSeconds <= 0 {
					t.Fatalf("%+v ends at once", a)
				}
			}
		}
		if n < 1000 || math.Abs(sum/n/mean-1) > 0.1 || math.Abs(longer/n-1/math.E) > 0.03 {
			t.Errorf("class %v: %v tasks run %.1f s in the mean, %.3f of them longer than %v; want %.3f", class, n, sum/n, longer/n, mean, 1/math.E)
		}
	}
	if got := offered(w, 0, 1); math.Abs(got-100) > 5 {
		t.Errorf("%.1f%% are offered, want 100", got)
	}
}

// Several loads come one after the other.
func TestLoadsComeOneAfterTheOther(t *testing.T) {
	w := sampledLive(t, func(s *LiveSampling) { s.Loads = []float64{130, 33, 130} })
	for i, want := range []float64{130, 33, 130} {
		if got := offered(w, float64(i)/3, float64(i+1)/3); math.Abs(got-want) > 8 {
			t.Errorf("part %d: %.1f%% are offered, want %v", i, got, want)
		}
	}
	once, same := sampledLive(t, func(*LiveSampling) {}), sampledLive(t, func(*LiveSampling) {})
	if !reflect.DeepEqual(once, same) {
		t.Error("the same seed draws another workload")
	}
}

// Within the first half of a period more arrives than in the second.
func TestAWaveSwingsTheLoad(t *testing.T) {
	w := sampledLive(t, func(s *LiveSampling) { s.Wave = 0.5 })
	high, low := 0.0, 0.0
	for i := range 6 {
		from := float64(i) / 6
		high, low = high+offered(w, from, from+1.0/12)/6, low+offered(w, from+1.0/12, from+1.0/6)/6
	}
	swing := 100 * 0.5 * 2 / math.Pi // the mean of half a sine
	if math.Abs(high-100-swing) > 6 || math.Abs(low-100+swing) > 6 {
		t.Errorf("%.1f%% are offered in the high halves and %.1f%% in the low ones, want %.1f and %.1f", high, low, 100+swing, 100-swing)
	}
}

// A percentile of a small sample is never below what all but one in a hundred waited.
func TestPercentilesOfWaits(t *testing.T) {
	many := make(waitTimes, 200)
	for i := range many {
		many[i] = float64(i + 1)
	}
	for _, c := range []struct {
		waits    waitTimes
		p95, p99 float64
	}{
		{nil, 0, 0},
		{waitTimes{7}, 7, 7},
		{waitTimes{98, 0, 0}, 0, 98},
		{many, 190, 198},
		{many[:100], 95, 99},
	} {
		if got := c.waits.sum(); got.P95 != c.p95 || got.P99 != c.p99 {
			t.Errorf("of %d waits p95 is %v and p99 %v, want %v and %v", len(c.waits), got.P95, got.P99, c.p95, c.p99)
		}
	}
}

// A list with fewer nodes than are wanted is not taken for the cluster that was.
func TestNoMoreNodesAreDrawnThanThereAre(t *testing.T) {
	w := smallWorkload()
	for nodes, valid := range map[int]bool{0: true, len(w.Nodes): true, len(w.Nodes) + 1: false, -1: false} {
		s := DefaultLiveSampling()
		s.Nodes, s.Tasks = nodes, 10
		timed := slices.Clone(w.History)
		for i := range timed {
			timed[i].RunSeconds = 100
		}
		_, err := SampleLive(w.Nodes, timed, timed, s)
		if (err == nil) != valid || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("nodes: %d is not valid", nodes)) {
			t.Errorf("%d of %d nodes: %v", nodes, len(w.Nodes), err)
		}
	}
}
