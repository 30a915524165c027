// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"flag"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

var benchNodes = flag.Int("sim.nodes", 10000, "largest cluster of BenchmarkScale")

// BenchmarkScale fills ever larger synthetic clusters to 130% and reports the
// cost per placement, next to the FGD baseline up to 10,000 nodes.
func BenchmarkScale(b *testing.B) {
	for _, n := range []int{1200, 10000, 100000} {
		if n > *benchNodes {
			continue
		}
		s := DefaultSynthetic()
		s.Nodes = n
		w := Generate(s)
		for name, weights := range map[string]place.Weights{"balanced": place.DefaultWeights(), "fast": place.FastWeights()} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				for range b.N {
					p, err := NewPlanned(w.Nodes, w.History, place.PolicyBalanced, weights)
					if err != nil {
						b.Fatal(err)
					}
					reportReplay(b, timed(&w, p))
				}
			})
		}
		if n <= 10000 {
			b.Run(fmt.Sprintf("fgd/%d", n), func(b *testing.B) {
				for range b.N {
					reportReplay(b, timed(&w, NewFGD(w.Nodes, w.History)))
				}
			})
		}
	}
}

// BenchmarkTrace compares the speed of BALANCED and of FGD on the published arrivals, by turns in
// one process, where a busy machine slows both.
func BenchmarkTrace(b *testing.B) {
	for _, trace := range []string{"default-42", "gpushare40-42", "multigpu20-42"} {
		b.Run(trace, func(b *testing.B) {
			w := openb(b, trace)
			var spent [2]float64
			for range b.N {
				ours, err := NewPlanned(w.Nodes, w.History, place.PolicyBalanced, place.DefaultWeights())
				if err != nil {
					b.Fatal(err)
				}
				for i, p := range []Placer{ours, NewFGD(w.Nodes, w.History)} {
					spent[i] += 1 / timed(&w, p).Speed.PerSecond
				}
			}
			b.ReportMetric(spent[0]*1e6/float64(b.N), "µs/placement")
			b.ReportMetric(spent[1]/spent[0], "of-FGD")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// timed replays on one thread, so that its CPU time is the replay's.
func timed(w *Workload, p Placer) Result {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return Replay(w.Nodes, w.Arrivals, p, ThreadClock)
}

func reportReplay(b *testing.B, r Result) {
	b.ReportMetric(1e6/r.Speed.PerSecond, "µs/placement")
	b.ReportMetric(float64(r.Speed.P50.Nanoseconds())/1000, "p50-µs")
	b.ReportMetric(float64(r.Speed.P99.Nanoseconds())/1000, "p99-µs")
	b.ReportMetric(r.At(100), "%@100")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkShapes lets a hundred thousand tasks come and go on a cluster that is
// nearly full, of few shapes and each of a shape of its own, and reports what the
// first tenth and the last tenth of them cost, and what the planner and the cluster
// hold in memory: time must make neither more. A shape of its own costs more than
// few, as every state of a node is new to it.
func BenchmarkShapes(b *testing.B) {
	s := DefaultSynthetic()
	s.Nodes = 1200
	w := Generate(s)
	for _, c := range []struct {
		name   string
		differ bool
	}{{"few", false}, {"own", true}} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				before := heapMiB()
				p, err := NewPlanned(w.Nodes, w.History, place.PolicyBalanced, place.DefaultWeights())
				if err != nil {
					b.Fatal(err)
				}
				first, last, placed := comeAndGo(b, p, w.Arrivals, c.differ)
				b.ReportMetric(first, "first-µs")
				b.ReportMetric(last, "last-µs")
				b.ReportMetric(placed, "placed-%")
				b.ReportMetric(heapMiB()-before, "heap-MiB")
				b.ReportMetric(0, "ns/op")
				runtime.KeepAlive(p)
			}
		})
	}
}

// comeAndGo is what a placement costs, in µs of CPU time, of the first and of the
// last ten thousand of a hundred thousand, and how many percent were placed. The
// oldest tasks end. Where tasks differ, no two ask for the same CPU and memory.
func comeAndGo(b *testing.B, p *Planned, tasks []Task, differ bool) (first, last, placed float64) {
	b.Helper()
	const count, tenth, side = 100_000, 10_000, 317 // side² ≥ count
	running := len(tasks) / 2
	var spent [count / tenth]time.Duration
	var ids []string // of what runs, the oldest first
	fits := 0
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range count {
		t := &tasks[i%len(tasks)]
		r := RequestOf(t, strconv.Itoa(i))
		if differ {
			r.CPUMHz, r.MemoryMiB = r.CPUMHz/side*side+int64(i%side), r.MemoryMiB/side*side+int64(i/side)
		}
		start := ThreadClock()
		p.Planner.Arrive(&r)
		pl, err := p.Planner.Place(&r)
		spent[i/tenth] += ThreadClock().Sub(start)
		if err == nil {
			if err := p.Snapshot.Apply(pl.Usage); err != nil {
				b.Fatal(err)
			}
			ids = append(ids, r.ID)
			fits++
		}
		if len(ids) > running {
			if _, err := p.Snapshot.Release(ids[0]); err != nil {
				b.Fatal(err)
			}
			ids = ids[1:]
		}
	}
	perTask := func(d time.Duration) float64 { return float64(d.Microseconds()) / tenth }
	return perTask(spent[0]), perTask(spent[len(spent)-1]), 100 * float64(fits) / count
}

func heapMiB() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// BenchmarkPreempt compares a preemption decision on a full cluster with a
// plain placement on a nearly full one.
func BenchmarkPreempt(b *testing.B) {
	s := DefaultSynthetic()
	s.Nodes = *benchNodes
	w := Generate(s)
	p, err := NewPlanned(w.Nodes, w.History, place.PolicyBalanced, place.DefaultWeights())
	if err != nil {
		b.Fatal(err)
	}
	plain := timed(&w, p)
	now := time.Unix(10000, 0)
	startAll(b, p.Snapshot)
	var sum time.Duration
	decisions, evicted := 0, 0
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ResetTimer()
	for range b.N {
		t := &w.Arrivals[decisions%len(w.Arrivals)]
		decisions++
		r := RequestOf(t, "urgent-"+strconv.Itoa(decisions))
		r.Priority = 100
		start := ThreadClock()
		plan, err := p.Planner.Preempt([]place.Request{r}, now)
		sum += ThreadClock().Sub(start)
		if err == nil {
			evicted += len(plan.Victims)
		}
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(decisions), "µs/decision")
	b.ReportMetric(float64(evicted)/float64(decisions), "victims/decision")
	b.ReportMetric(sum.Seconds()/float64(decisions)*plain.Speed.PerSecond, "placements/decision")
}

// startAll gives everything that runs a start time and a priority of its own,
// so that victims differ.
func startAll(b *testing.B, s *place.Snapshot) {
	i := 0
	for _, id := range s.NodeIDs() {
		for _, u := range s.UsagesOn(id) {
			if _, err := s.Release(u.ID); err != nil {
				b.Fatal(err)
			}
			i++
			u.Start, u.Priority = time.Unix(int64(i*7919%9000), 0), 20+i%3*10
			if err := s.Apply(u); err != nil {
				b.Fatal(err)
			}
		}
	}
}
