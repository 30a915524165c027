// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

var worlds = flag.String("sim.worlds", "", "numbers of nodes of TestWorlds, such as 5,20,50,200,600; none: it is skipped")

// behindAtMost is by how many points BALANCED may be behind the better of FGD and BestFit.
const behindAtMost = 0.3

// GPUs in use where tasks end, on every variant, by size of the cluster: the mean of three
// loads, each with -sim.seeds draws. BALANCED is behind on none.
func TestWorlds(t *testing.T) {
	if *worlds == "" {
		t.Skip("-sim.worlds says how large the clusters are")
	}
	sizes := strings.Split(*worlds, ",")
	nodes, timed := openbNodes(t), openbList(t, "default")
	t.Logf("| variant | nodes: BestFit / FGD / BALANCED ... | ahead of the better, mean |")
	for _, v := range variants {
		list := openbFile(t, "openb_pod_list_"+v.list+".csv", func(r io.Reader) ([]Task, error) { return ReadTasks(r) })
		row, ahead, draws := "| "+v.name, 0.0, 0
		for _, text := range sizes {
			size, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			var used [3]float64
			n := 0
			for _, load := range []float64{80, 90, 100} {
				for seed := range *seeds {
					s := DefaultLiveSampling()
					s.Seed, s.Nodes, s.Loads, s.Mix, s.Tasks = uint64(seed+1), size, []float64{load}, v.mix, 15_000
					w, err := SampleLive(nodes, list, timed, s)
					if err != nil {
						t.Fatal(err)
					}
					for i, p := range []Placer{NewBestFit(w.Nodes), NewFGD(w.Nodes, w.History), planned(t, &w, place.PolicyBalanced, place.DefaultWeights())} {
						r, err := Live(w.Nodes, w.Arrivals, p, LiveOptions{})
						if err != nil {
							t.Fatal(err)
						}
						used[i] += r.UsedPercent
					}
					n++
				}
			}
			for i := range used {
				used[i] /= float64(n)
			}
			row += fmt.Sprintf(" | %s: %.2f / %.2f / %.2f", text, used[0], used[1], used[2])
			ahead, draws = ahead+used[2]-max(used[0], used[1]), draws+1
		}
		ahead /= float64(draws)
		t.Logf("%s | %+.2f |", row, ahead)
		if ahead < -behindAtMost {
			t.Errorf("%s: BALANCED is %.2f points behind the better of FGD and BestFit", v.name, -ahead)
		}
	}
}
