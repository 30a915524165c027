// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"math"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// quickWeights are weights under which small replays are quick.
func quickWeights() place.Weights {
	w := place.FastWeights()
	w.Rough.Streams = 4
	return w
}

func frozen() time.Time { return time.Time{} }

func smallWorkload() Workload {
	s := DefaultSynthetic()
	s.Nodes = 40
	return Generate(s)
}

func planned(t *testing.T, w *Workload, policy place.Policy, weights place.Weights) Placer {
	t.Helper()
	p, err := NewPlanned(w.Nodes, w.History, policy, weights)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// verify checks a replay from its spots alone: capacities hold, models match,
// and nothing was rejected that a node could take.
func verify(t *testing.T, w *Workload, r *Result) {
	t.Helper()
	c := newCluster(w.Nodes)
	for i, s := range r.Spots {
		k := &w.Arrivals[i]
		if s.Node < 0 {
			for n := range c.nodes {
				if c.nodes[n].fits(k) {
					t.Fatalf("arrival %d was rejected, but node %d could take it", i, n)
				}
			}
			continue
		}
		m := &c.nodes[s.Node]
		if !m.fits(k) || len(s.GPUs) != k.GPUs {
			t.Fatalf("arrival %d does not fit node %d with GPUs %v", i, s.Node, s.GPUs)
		}
		m.book(k, s.GPUs)
		for _, g := range m.gpus {
			if g < 0 {
				t.Fatalf("arrival %d overfills a GPU of node %d", i, s.Node)
			}
		}
	}
}

func TestReplayKeepsTheRules(t *testing.T) {
	w := smallWorkload()
	fast := place.FastWeights()
	for name, p := range map[string]Placer{
		"BALANCED": planned(t, &w, place.PolicyBalanced, place.DefaultWeights()),
		"PACK":     planned(t, &w, place.PolicyPack, fast),
		"SPREAD":   planned(t, &w, place.PolicySpread, fast),
		"fgd":      NewFGD(w.Nodes, w.History),
		"bestfit":  NewBestFit(w.Nodes),
		"random":   NewRandom(w.Nodes, 1),
	} {
		t.Run(name, func(t *testing.T) {
			r := Replay(w.Nodes, w.Arrivals, p, frozen)
			verify(t, &w, &r)
			if r.Placed+r.Rejected != r.Arrivals || r.At(100) <= 0 || r.At(100) > 100 {
				t.Fatalf("placed %d, rejected %d of %d, %.2f%% at 100%%", r.Placed, r.Rejected, r.Arrivals, r.At(100))
			}
		})
	}
}

func TestAllocationHoldsUntilMoreArrives(t *testing.T) {
	r := Result{Curve: []Point{{33, 33.3}, {100, 66.7}, {133, 99}}}
	for percent, want := range map[int]float64{32: 0, 33: 33.3, 99: 33.3, 100: 66.7, 130: 66.7, 133: 99} {
		if got := r.At(percent); got != want {
			t.Errorf("%g%% allocated when %d%% had arrived, want %g%%", got, percent, want)
		}
	}
	if got := r.At(134); !math.IsNaN(got) {
		t.Errorf("%g%% allocated when 134%% had arrived, but only 133%% did", got)
	}
}

// A fraction of a percent is not rounded up to a whole one.
func TestFewTasksNameModels(t *testing.T) {
	s := DefaultSynthetic()
	s.Nodes, s.Percent, s.Models = 1000, 1000, 0.4
	named, tasks := 0, 0
	for _, k := range Generate(s).Arrivals {
		if k.GPUs > 0 {
			tasks++
			named += len(k.Models)
		}
	}
	if got := 100 * float64(named) / float64(tasks); got < 0.3 || got > 0.5 {
		t.Errorf("%.2f%% of %d tasks name models, want 0.4%%", got, tasks)
	}
}

func TestReplayIsDeterministic(t *testing.T) {
	w := smallWorkload()
	a := Replay(w.Nodes, w.Arrivals, planned(t, &w, place.PolicyBalanced, place.DefaultWeights()), frozen)
	b := Replay(w.Nodes, w.Arrivals, planned(t, &w, place.PolicyBalanced, place.DefaultWeights()), frozen)
	for i := range a.Spots {
		if a.Spots[i].Node != b.Spots[i].Node {
			t.Fatalf("arrival %d went to node %d, then to %d", i, a.Spots[i].Node, b.Spots[i].Node)
		}
	}
}

func TestBalancedBeatsFGDOnSyntheticWork(t *testing.T) {
	for seed := range uint64(3) {
		s := DefaultSynthetic()
		s.Seed = seed + 1
		w := Generate(s)
		ours := Replay(w.Nodes, w.Arrivals, planned(t, &w, place.PolicyBalanced, place.DefaultWeights()), frozen)
		fgd := Replay(w.Nodes, w.Arrivals, NewFGD(w.Nodes, w.History), frozen)
		if ours.At(100) < fgd.At(100) {
			t.Errorf("seed %d: BALANCED %.2f, FGD %.2f at 100%%", s.Seed, ours.At(100), fgd.At(100))
		}
	}
}
