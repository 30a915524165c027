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

// traceList is a list with tasks of every kind.
func traceList() []Task {
	var list []Task
	add := func(n int, t Task) {
		for range n {
			t.Name = fmt.Sprintf("pod-%d", len(list))
			list = append(list, t)
		}
	}
	add(30, Task{CPUMilli: 8000, MemoryMiB: 100})
	add(90, Task{CPUMilli: 4000, MemoryMiB: 100, GPUs: 1, GPUMilli: 400})
	add(10, Task{CPUMilli: 4000, MemoryMiB: 100, GPUs: 1, GPUMilli: 700, Models: []string{"T4"}})
	add(60, Task{CPUMilli: 9000, MemoryMiB: 100, GPUs: 1, GPUMilli: 1000})
	add(15, Task{CPUMilli: 9000, MemoryMiB: 100, GPUs: 1, GPUMilli: 1000, Models: []string{"A100", "V100"}})
	add(20, Task{CPUMilli: 12000, MemoryMiB: 100, GPUs: 2, GPUMilli: 1000})
	return list
}

func traceNodes() []Node {
	var nodes []Node
	for i := range 40 {
		n := Node{Name: fmt.Sprintf("node-%d", i), CPUMilli: 64000, MemoryMiB: 100000, GPUs: 8, Model: "A100"}
		if i%4 == 0 {
			n.GPUs, n.Model = 1, "T4"
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func percentOf(v float64) *float64 { return &v }

// shares is what a list consists of, in percent, as Mix counts it.
type shares struct {
	tasks, gpuTasks                int
	cpuOnly, shared, multi, models float64
}

func sharesOf(list []Task) shares {
	var s shares
	var n, milli [kinds]int64
	named := 0
	for i := range list {
		k := kindOf(&list[i])
		n[k]++
		milli[k] += list[i].Demand()
		if len(list[i].Models) > 0 {
			named++
		}
	}
	s.tasks = len(list)
	s.gpuTasks = len(list) - int(n[kindCPUOnly])
	s.cpuOnly = percent(n[kindCPUOnly], int64(len(list)))
	s.shared, s.multi = percent(milli[kindShared], demandOf(list)), percent(milli[kindMulti], demandOf(list))
	s.models = percent(int64(named), int64(s.gpuTasks))
	return s
}

func TestVariantsHaveTheirMix(t *testing.T) {
	asListed := sharesOf(traceList())
	for _, c := range []struct {
		name  string
		mix   Mix
		check func(s shares) bool
	}{
		{"as listed", Mix{}, func(s shares) bool { return s == asListed }},
		{"fewer CPU-only", Mix{CPUOnly: percentOf(5)}, func(s shares) bool {
			return near(s.cpuOnly, 5) && s.gpuTasks == asListed.gpuTasks && s.shared == asListed.shared
		}},
		{"more CPU-only", Mix{CPUOnly: percentOf(60)}, func(s shares) bool { return near(s.cpuOnly, 60) && s.gpuTasks == asListed.gpuTasks }},
		{"no CPU-only", Mix{CPUOnly: percentOf(0)}, func(s shares) bool { return s.cpuOnly == 0 && s.gpuTasks == asListed.gpuTasks }},
		{"more shared", Mix{Shared: percentOf(70)}, func(s shares) bool {
			return near(s.shared, 70) && near(s.multi, asListed.multi*30/(100-asListed.shared)) && near(float64(s.gpuTasks), float64(asListed.gpuTasks))
		}},
		{"all shared", Mix{Shared: percentOf(100)}, func(s shares) bool { return s.shared == 100 && s.gpuTasks == asListed.gpuTasks }},
		{"none shared", Mix{Shared: percentOf(0)}, func(s shares) bool { return s.shared == 0 && near(float64(s.gpuTasks), float64(asListed.gpuTasks)) }},
		{"more multi-GPU", Mix{Multi: percentOf(60)}, func(s shares) bool { return near(s.multi, 60) && s.gpuTasks > asListed.gpuTasks }},
		{"no multi-GPU", Mix{Multi: percentOf(0)}, func(s shares) bool { return s.multi == 0 && s.gpuTasks == asListed.gpuTasks-20 }},
		{"shared and multi-GPU", Mix{Shared: percentOf(30), Multi: percentOf(50)}, func(s shares) bool {
			return near(s.shared, 30) && near(s.multi, 50) && near(float64(s.gpuTasks), float64(asListed.gpuTasks))
		}},
		{"nothing else", Mix{Shared: percentOf(40), Multi: percentOf(60)}, func(s shares) bool { return near(s.shared, 40) && near(s.multi, 60) }},
		{"more models", Mix{Models: percentOf(50)}, func(s shares) bool { return near(s.models, 50) && s.tasks == asListed.tasks }},
		{"fewer models", Mix{Models: percentOf(6)}, func(s shares) bool { return near(s.models, 6) && s.tasks == asListed.tasks }},
		{"everything", Mix{CPUOnly: percentOf(20), Shared: percentOf(40), Multi: percentOf(20), Models: percentOf(30)}, func(s shares) bool {
			return near(s.cpuOnly, 20) && near(s.shared, 40) && near(s.multi, 20) && near(s.models, 30)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(5) {
				w, err := Sample(traceNodes(), traceList(), Sampling{Seed: seed, Mix: c.mix, Percent: 130})
				if err != nil {
					t.Fatal(err)
				}
				if got := sharesOf(w.History); !c.check(got) {
					t.Errorf("seed %d: %+v, of a list with %+v", seed, got, asListed)
				}
			}
		})
	}
}

// near is within what single tasks of the small list weigh.
func near(got, want float64) bool { return math.Abs(got-want) < 2.5 }

func TestEveryTaskArrivesOnceThenSomeAgain(t *testing.T) {
	list, nodes := traceList(), traceNodes()
	w, err := Sample(nodes, list, DefaultSampling())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(w.History, list) {
		t.Error("the history is not the list")
	}
	byName := map[string]Task{}
	for _, k := range list {
		byName[k.Name] = k
	}
	first := map[string]bool{}
	for i, a := range w.Arrivals {
		name, _, again := strings.Cut(a.Name, "#")
		want := byName[name]
		want.Name = a.Name
		if !reflect.DeepEqual(a, want) {
			t.Fatalf("arrival %d is %+v, in the list it is %+v", i, a, want)
		}
		if i < len(list) && (again || first[name]) {
			t.Fatalf("arrival %d, %q, comes again before every task came once", i, a.Name)
		}
		first[name] = true
	}
	wanted, asked := Capacity(nodes)*130/100, demandOf(w.Arrivals)
	if last := w.Arrivals[len(w.Arrivals)-1]; asked < wanted || asked-last.Demand() >= wanted {
		t.Errorf("arrivals ask for %d milli, the last for %d; want the first beyond %d", asked, last.Demand(), wanted)
	}
	if slices.EqualFunc(w.Nodes, nodes, func(a, b Node) bool { return a.Name == b.Name }) {
		t.Error("the nodes are in the order of the file")
	}
	slices.SortFunc(w.Nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	if !reflect.DeepEqual(w.Nodes, nodes) {
		t.Error("the nodes are not those of the file")
	}
}

// A seed means the same on every machine and in every release: tables that were
// published with it can be repeated.
func TestSeedsSayWhatIsDrawn(t *testing.T) {
	sample := func(seed uint64, mix Mix) Workload {
		w, err := Sample(traceNodes(), traceList(), Sampling{Seed: seed, Mix: mix, Percent: 130})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	mix := Mix{CPUOnly: percentOf(20), Shared: percentOf(40), Models: percentOf(30)}
	a := sample(7, mix)
	if b := sample(7, mix); !reflect.DeepEqual(a, b) {
		t.Error("the same seed draws another workload")
	}
	if b := sample(8, mix); reflect.DeepEqual(a.Arrivals, b.Arrivals) || reflect.DeepEqual(a.Nodes, b.Nodes) || reflect.DeepEqual(a.History, b.History) {
		t.Error("another seed draws the same")
	}
	if b := sample(7, Mix{}); !reflect.DeepEqual(a.Nodes, b.Nodes) {
		t.Error("another mix changes the order of the nodes")
	}
	var names []string
	for _, k := range a.Arrivals[:4] {
		names = append(names, k.Name)
	}
	got := fmt.Sprintln(len(a.History), len(a.Arrivals), a.Nodes[0].Name, names)
	if want := "244 582 node-36 [pod-138 pod-157 pod-28 pod-115]\n"; got != want {
		t.Errorf("seed 7 draws %s, before it drew %s", got, want)
	}
}

// Models are taken from tasks with as many GPUs, and from the nodes when no
// task names any.
func TestWhereModelsComeFrom(t *testing.T) {
	w, err := Sample(traceNodes(), traceList(), Sampling{Mix: Mix{Models: percentOf(80)}, Percent: 130})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range w.History {
		want := map[kind]string{kindShared: "[T4]", kindSingle: "[A100 V100]", kindMulti: "[]", kindCPUOnly: "[]"}[kindOf(&k)]
		if got := fmt.Sprint(k.Models); got != want && got != "[]" {
			t.Errorf("%+v names %s, want %s", k, got, want)
		}
	}
	var free []Task
	for _, k := range traceList() {
		k.Models = nil
		free = append(free, k)
	}
	if w, err = Sample(traceNodes(), free, Sampling{Mix: Mix{Models: percentOf(100)}, Percent: 130}); err != nil {
		t.Fatal(err)
	}
	named := map[string]int{}
	for _, k := range w.History {
		if k.GPUs == 0 {
			continue
		}
		named[k.Models[0]]++
		if k.GPUs == 2 && k.Models[0] != "A100" {
			t.Errorf("%+v can run on no node", k)
		}
	}
	if named["A100"] <= named["T4"] || named["T4"] == 0 {
		t.Errorf("%v name the models, want as the GPUs are: 240 A100, 10 T4", named)
	}
}

func TestWhatCannotBeSampled(t *testing.T) {
	list, nodes := traceList(), traceNodes()
	cpuOnly, single := list[:30], list[130:190]
	for _, c := range []struct {
		name  string
		nodes []Node
		list  []Task
		s     Sampling
		says  string
	}{
		{"no demand", nodes, list, Sampling{}, "demand is 0%, want 1 to 10000"},
		{"too much demand", nodes, list, Sampling{Percent: 10001}, "demand is 10001%"},
		{"no GPUs", []Node{{Name: "a"}}, list, DefaultSampling(), "no node has a GPU"},
		{"no GPU tasks", nodes, cpuOnly, DefaultSampling(), "no task asks for a GPU"},
		{"no tasks", nodes, nil, DefaultSampling(), "no task asks for a GPU"},
		{"too little demand", []Node{{Name: "a", GPUs: maxGPUs}}, []Task{{GPUs: 1, GPUMilli: 1}}, Sampling{Percent: MaxPercent}, "it takes 6400000 tasks to ask for 6400000 GPU milli"},
		{"negative", nodes, list, Sampling{Percent: 1, Mix: Mix{CPUOnly: percentOf(-1)}}, "CPU-only tasks are -1%, want 0 to 100"},
		{"over 100", nodes, list, Sampling{Percent: 1, Mix: Mix{Shared: percentOf(101)}}, "shared tasks are 101%, want 0 to 100"},
		{"not a number", nodes, list, Sampling{Percent: 1, Mix: Mix{Models: percentOf(math.NaN())}}, "tasks that name models are NaN%"},
		{"only CPU-only", nodes, list, Sampling{Percent: 1, Mix: Mix{CPUOnly: percentOf(100)}}, "CPU-only tasks are 100%, want less"},
		{"only multi-GPU", nodes, list, Sampling{Percent: 1, Mix: Mix{Multi: percentOf(100)}}, "multi-GPU tasks are 100%, want less"},
		{"over 100 together", nodes, list, Sampling{Percent: 1, Mix: Mix{Shared: percentOf(60), Multi: percentOf(41)}}, "want 100 at most together"},
		{"no such kind", nodes, single, Sampling{Percent: 1, Mix: Mix{Shared: percentOf(40)}}, "no task with a part of one GPU to draw from"},
		{"no CPU-only to draw from", nodes, single, Sampling{Percent: 1, Mix: Mix{CPUOnly: percentOf(40)}}, "no task with no GPU to draw from"},
		{"too many", nodes, list, Sampling{Percent: 1, Mix: Mix{CPUOnly: percentOf(99.9999)}}, "tasks with no GPU, want 1048576 at most"},
		{"models of no kind", nodes, list, Sampling{Percent: 1, Mix: Mix{Models: percentOf(100)}}, "only 175 of 195 GPU tasks can name models"},
		{"models of no node", []Node{{Name: "a", GPUs: 1}}, single, Sampling{Percent: 1, Mix: Mix{Models: percentOf(100)}}, "only 0 of 60 GPU tasks can name models"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Sample(c.nodes, c.list, c.s); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v, want %q", err, c.says)
			}
		})
	}
}

func FuzzSample(f *testing.F) {
	f.Add(uint64(1), 130, 10.0, 40.0, 20.0, 33.0)
	f.Add(uint64(2), 100, 0.0, 100.0, 0.0, 0.0)
	f.Add(uint64(3), 1, -1.0, math.Inf(1), math.NaN(), 100.0)
	f.Add(uint64(4), 1, 99.99, 99.99, 0.01, 1e-300)
	list, nodes := traceList(), traceNodes()
	f.Fuzz(func(t *testing.T, seed uint64, demand int, cpuOnly, shared, multi, models float64) {
		mix := Mix{CPUOnly: &cpuOnly, Shared: &shared, Multi: &multi, Models: &models}
		w, err := Sample(nodes, list, Sampling{Seed: seed, Mix: mix, Percent: demand % 500})
		if err != nil {
			return
		}
		if demandOf(w.Arrivals) < Capacity(nodes)*int64(demand%500)/100 || len(w.Nodes) != len(nodes) {
			t.Fatalf("%d%%: %d tasks ask for %d on %d nodes", demand%500, len(w.Arrivals), demandOf(w.Arrivals), len(w.Nodes))
		}
		for _, k := range w.History {
			if k.GPUs == 0 && len(k.Models) > 0 {
				t.Fatalf("%+v names models and no GPU", k)
			}
		}
	})
}
