// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// The tests of this file need Alibaba's openb traces: OPENB_TRACES names their
// directory. With -v they print the tables of docs/design/placement-study.md.

var seeds = flag.Int("sim.seeds", 1, "how often TestAllVariants draws each variant")

// openbDir is where the traces are.
func openbDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("OPENB_TRACES")
	if dir == "" {
		t.Skip("OPENB_TRACES does not name a directory with Alibaba's openb traces")
	}
	return dir
}

// openbFile reads a file of the traces.
func openbFile[T any](t testing.TB, name string, read func(io.Reader) (T, error)) T {
	t.Helper()
	f, err := os.Open(filepath.Join(openbDir(t), name))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no such trace: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out, err := read(f)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func openbNodes(t testing.TB) []Node {
	t.Helper()
	return openbFile(t, "openb_node_list_gpu_node.csv", ReadNodes)
}

func openbList(t testing.TB, variant string) []Task {
	t.Helper()
	return openbFile(t, "openb_pod_list_"+variant+".csv", ReadTasks)
}

// openb loads a sequence of arrivals such as "default-42".
func openb(t testing.TB, trace string) Workload {
	t.Helper()
	nodes := openbNodes(t)
	variant, _, _ := strings.Cut(trace, "-")
	return Workload{
		Nodes:    openbFile(t, "order-"+trace+".csv", func(r io.Reader) ([]Node, error) { return ReadOrder(r, nodes) }),
		History:  openbList(t, variant),
		Arrivals: openbFile(t, "arrivals-"+trace+".csv", ReadTasks),
	}
}

// allocation is what policies allocate of the GPUs, in percent, at 100% and at
// 130% of arrived demand.
type allocation struct{ bestFit, fgd, fast, balanced [2]float64 }

func (a allocation) cells() string {
	var row string
	for _, r := range [][2]float64{a.bestFit, a.fgd, a.fast, a.balanced} {
		row += fmt.Sprintf("| %.2f / %.2f ", r[0], r[1])
	}
	return row + "|"
}

func compare(t *testing.T, w *Workload) allocation {
	t.Helper()
	ours := replayBalanced(t, w)
	verify(t, w, &ours)
	return allocation{
		bestFit:  percentages(Replay(w.Nodes, w.Arrivals, NewBestFit(w.Nodes), frozen)),
		fgd:      percentages(Replay(w.Nodes, w.Arrivals, NewFGD(w.Nodes, w.History), frozen)),
		fast:     percentages(Replay(w.Nodes, w.Arrivals, planned(t, w, place.PolicyBalanced, place.FastWeights()), frozen)),
		balanced: percentages(ours),
	}
}

func percentages(r Result) [2]float64 { return [2]float64{r.At(100), r.At(130)} }

func replayBalanced(t *testing.T, w *Workload) Result {
	t.Helper()
	return Replay(w.Nodes, w.Arrivals, planned(t, w, place.PolicyBalanced, place.DefaultWeights()), frozen)
}

// beatsFGD reports where BALANCED does not.
func (a allocation) beatsFGD(t *testing.T) {
	t.Helper()
	for i, at := range []int{100, 130} {
		if !(a.balanced[i] > a.fgd[i]) {
			t.Errorf("at %d%%: BALANCED %.2f does not beat FGD %.2f", at, a.balanced[i], a.fgd[i])
		}
	}
}

// The published results: sequences of arrivals that the authors of FGD used.
func TestPublishedResults(t *testing.T) {
	openbDir(t)
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
			w := openb(t, c.trace)
			got := compare(t, &w)
			t.Logf("| %s %s", c.trace, got.cells())
			for i, at := range []int{100, 130} {
				// Classes of equal frequency have no published order: 0.06.
				if c.fgd[i] > 0 && (math.Abs(got.fgd[i]-c.fgd[i]) > 0.06 || math.Abs(got.bestFit[i]-c.bestFit[i]) > 0.02) {
					t.Errorf("at %d%%: FGD %.2f, published %.2f; BestFit %.2f, published %.2f", at, got.fgd[i], c.fgd[i], got.bestFit[i], c.bestFit[i])
				}
			}
			got.beatsFGD(t)
		})
	}
}

// variants are the published variants of the trace, as percentages of its list.
var variants = []struct {
	name, list string
	mix        Mix
}{
	{"default", "default", Mix{}},
	{"cpu050", "default", Mix{CPUOnly: percentOf(5)}},
	{"cpu100", "default", Mix{CPUOnly: percentOf(10)}},
	{"cpu200", "default", Mix{CPUOnly: percentOf(20)}},
	{"cpu250", "default", Mix{CPUOnly: percentOf(25)}},
	{"gpushare20", "default", Mix{Shared: percentOf(20)}},
	{"gpushare40", "default", Mix{Shared: percentOf(40)}},
	{"gpushare60", "default", Mix{Shared: percentOf(60)}},
	{"gpushare80", "default", Mix{Shared: percentOf(80)}},
	{"gpushare100", "default", Mix{Shared: percentOf(100)}},
	{"gpuspec10", "gpuspec10", Mix{Models: percentOf(10)}},
	{"gpuspec20", "gpuspec10", Mix{Models: percentOf(20)}},
	{"gpuspec25", "gpuspec10", Mix{Models: percentOf(25)}},
	{"gpuspec33", "gpuspec10", Mix{Models: percentOf(33)}},
	{"multigpu20", "default", Mix{Multi: percentOf(20)}},
	{"multigpu30", "default", Mix{Multi: percentOf(30)}},
	{"multigpu40", "default", Mix{Multi: percentOf(40)}},
	{"multigpu50", "default", Mix{Multi: percentOf(50)}},
}

// drawn is a variant as a seed draws it.
func drawn(t *testing.T, variant int, seed uint64) Workload {
	t.Helper()
	v := variants[variant]
	w, err := Sample(openbNodes(t), openbList(t, v.list), Sampling{Seed: seed, Mix: v.mix, Percent: 130})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// All variants of the trace, drawn from its list; -sim.seeds says how often.
func TestAllVariants(t *testing.T) {
	openbDir(t)
	results := make([][]allocation, len(variants))
	t.Run("all", func(t *testing.T) {
		for i, v := range variants {
			results[i] = make([]allocation, *seeds)
			for s := range *seeds {
				t.Run(fmt.Sprintf("%s-%d", v.name, s+1), func(t *testing.T) {
					t.Parallel()
					w := drawn(t, i, uint64(s+1))
					results[i][s] = compare(t, &w)
					results[i][s].beatsFGD(t)
				})
			}
		}
	})
	table := "\n"
	for i, v := range variants {
		table += fmt.Sprintf("| %s %s\n", v.name, mean(results[i]).cells())
	}
	all := slices.Concat(results...)
	table += fmt.Sprintf("| mean %s\n", mean(all).cells())
	table += "gain, at the least " + gains(func(i int) string { return variants[i / *seeds].name }, all)
	t.Log(table)
}

func mean(all []allocation) allocation {
	var m allocation
	for _, a := range all {
		for i := range 2 {
			n := float64(len(all))
			m.bestFit[i] += a.bestFit[i] / n
			m.fgd[i] += a.fgd[i] / n
			m.fast[i] += a.fast[i] / n
			m.balanced[i] += a.balanced[i] / n
		}
	}
	return m
}

// gain is by how much BALANCED is ahead of FGD, in points.
func (a allocation) gain() [2]float64 {
	return [2]float64{a.balanced[0] - a.fgd[0], a.balanced[1] - a.fgd[1]}
}

// gains says by how much BALANCED is ahead of FGD on average, at the least, and
// on which of the names.
func gains(name func(i int) string, all []allocation) string {
	least, at := math.Inf(1), 0
	for i, a := range all {
		if g := a.gain(); min(g[0], g[1]) < least {
			least, at = min(g[0], g[1]), i
		}
	}
	m := mean(all).gain()
	return fmt.Sprintf("| %+.2f / %+.2f | %+.2f (%s) |", m[0], m[1], least, name(at))
}

// unexpected are ways in which things are not as expected. Each changes a
// workload and returns the history that BALANCED is told, while FGD knows the
// right one.
var unexpected = []struct {
	name   string
	change func(w *Workload, other []Task) (told []Task)
}{
	{"no history", func(*Workload, []Task) []Task { return nil }},
	{"the history of another variant", func(_ *Workload, other []Task) []Task { return other }},
	{"smallest tasks first", func(w *Workload, _ []Task) []Task {
		slices.SortStableFunc(w.Arrivals, func(a, b Task) int { return cmp.Compare(a.Demand(), b.Demand()) })
		return w.History
	}},
	{"smallest tasks first and no history", func(w *Workload, _ []Task) []Task {
		slices.SortStableFunc(w.Arrivals, func(a, b Task) int { return cmp.Compare(a.Demand(), b.Demand()) })
		return nil
	}},
	{"largest tasks first", func(w *Workload, _ []Task) []Task {
		slices.SortStableFunc(w.Arrivals, func(a, b Task) int { return cmp.Compare(b.Demand(), a.Demand()) })
		return w.History
	}},
	{"20% less CPU on every node", func(w *Workload, _ []Task) []Task {
		for i := range w.Nodes {
			w.Nodes[i].CPUMilli = w.Nodes[i].CPUMilli * 80 / 100
		}
		return w.History
	}},
}

// What BALANCED gains on all variants when things are not as expected. The other
// history is that of the variant half the table away.
func TestUnexpectedWork(t *testing.T) {
	openbDir(t)
	results := make([][]allocation, len(unexpected))
	t.Run("all", func(t *testing.T) {
		for c, u := range unexpected {
			results[c] = make([]allocation, len(variants))
			for i, v := range variants {
				t.Run(u.name+"/"+v.name, func(t *testing.T) {
					t.Parallel()
					w := drawn(t, i, 1)
					told := u.change(&w, drawn(t, (i+len(variants)/2)%len(variants), 1).History)
					fgd := Replay(w.Nodes, w.Arrivals, NewFGD(w.Nodes, w.History), frozen)
					w.History = told
					ours := replayBalanced(t, &w)
					results[c][i] = allocation{fgd: percentages(fgd), balanced: percentages(ours)}
					t.Logf("FGD %.2f, BALANCED %.2f", results[c][i].fgd, results[c][i].balanced)
				})
			}
		}
	})
	for c, u := range unexpected {
		t.Logf("| %s %s", u.name, gains(func(i int) string { return variants[i].name }, results[c]))
		if g := mean(results[c]).gain(); g[0] <= 0 || g[1] <= 0 {
			t.Errorf("with %s BALANCED does not beat FGD on average", u.name)
		}
	}
}
