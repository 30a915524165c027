package sim

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
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

// The published results, for whoever has the traces: OPENB_TRACES names their
// directory. With -v it prints the table of docs/placement.md.
func TestPublishedResults(t *testing.T) {
	dir := os.Getenv("OPENB_TRACES")
	if dir == "" {
		t.Skip("OPENB_TRACES does not name a directory with Alibaba's openb traces")
	}
	for _, c := range []struct {
		trace        string
		fgd, bestFit [2]float64 // as published, at 100% and 130%; zero: not published
	}{
		{"default-42", [2]float64{95.14, 95.29}, [2]float64{92.94, 93.13}},
		{trace: "default-43"},
		{trace: "default-44"},
		{"cpu100-42", [2]float64{95.03, 95.21}, [2]float64{93.28, 93.46}},
		{"gpushare40-42", [2]float64{94.06, 94.24}, [2]float64{91.42, 91.66}},
		{"gpuspec10-42", [2]float64{94.49, 94.73}, [2]float64{93.46, 93.61}},
		{"multigpu20-42", [2]float64{95.38, 95.51}, [2]float64{93.35, 93.64}},
	} {
		t.Run(c.trace, func(t *testing.T) {
			w := openb(t, dir, c.trace)
			fgd := Replay(w.Nodes, w.Arrivals, NewFGD(w.Nodes, w.History), frozen)
			bestFit := Replay(w.Nodes, w.Arrivals, NewBestFit(w.Nodes), frozen)
			ours := Replay(w.Nodes, w.Arrivals, planned(t, &w, place.PolicyBalanced, place.DefaultWeights()), frozen)
			verify(t, &w, &ours)
			fast := Replay(w.Nodes, w.Arrivals, planned(t, &w, place.PolicyBalanced, place.FastWeights()), frozen)
			row := "| " + c.trace
			for _, r := range []*Result{&bestFit, &fgd, &fast, &ours} {
				row += fmt.Sprintf(" | %.2f / %.2f", r.At(100), r.At(130))
			}
			t.Log(row + " |")
			for i, at := range []int{100, 130} {
				// Classes of equal frequency have no published order: 0.06.
				if c.fgd[i] > 0 && (math.Abs(fgd.At(at)-c.fgd[i]) > 0.06 || math.Abs(bestFit.At(at)-c.bestFit[i]) > 0.02) {
					t.Errorf("at %d%%: FGD %.2f, published %.2f; BestFit %.2f, published %.2f", at, fgd.At(at), c.fgd[i], bestFit.At(at), c.bestFit[i])
				}
				if ours.At(at) <= fgd.At(at) {
					t.Errorf("at %d%%: BALANCED %.2f does not beat FGD %.2f", at, ours.At(at), fgd.At(at))
				}
			}
		})
	}
}

// openb loads a trace such as "default-42".
func openb(t *testing.T, dir, trace string) Workload {
	t.Helper()
	var w Workload
	open := func(name string) *os.File {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			t.Skipf("no such trace: %v", err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	variant, _, _ := strings.Cut(trace, "-")
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	w.Nodes, err = ReadNodes(open("openb_node_list_gpu_node.csv"))
	must(err)
	w.Nodes, err = ReadOrder(open("order-"+trace+".csv"), w.Nodes)
	must(err)
	w.History, err = ReadTasks(open("openb_pod_list_" + variant + ".csv"))
	must(err)
	w.Arrivals, err = ReadTasks(open("arrivals-" + trace + ".csv"))
	must(err)
	return w
}
