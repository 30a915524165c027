// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// One GPU: the urgent task evicts the lowly one, which starts again after it.
func TestLivePreempts(t *testing.T) {
	nodes := []Node{{Name: "n", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 1, Model: "T4"}}
	tasks := []Task{
		{Name: "lowly", GPUs: 1, GPUMilli: 1000, ArriveSecond: 0, RunSeconds: 100, Priority: 10},
		{Name: "urgent", GPUs: 1, GPUMilli: 1000, ArriveSecond: 30, RunSeconds: 50, Priority: 90},
	}
	r, err := Live(nodes, tasks, planned(t, &Workload{Nodes: nodes}, place.PolicyBalanced, quickWeights()), LiveOptions{Queue: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Finished != 2 || r.Evictions != 1 || r.LostMilliS != 30*1000 || r.DoneMilliS != 150*1000 {
		t.Errorf("finished %d, evictions %d, lost %d, done %d", r.Finished, r.Evictions, r.LostMilliS, r.DoneMilliS)
	}
	if w := r.Priorities[90]; w.Mean != 0 {
		t.Errorf("the urgent task waited %v s", w.Mean)
	}
}

// A clock that takes a millisecond to read, and decisions that take five at the first task and
// none at the second: what reading takes is left out.
func TestLiveTimesDecisions(t *testing.T) {
	nodes := []Node{{Name: "n", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 1, Model: "T4"}}
	tasks := []Task{{Name: "a", GPUs: 1, GPUMilli: 500, RunSeconds: 10}, {Name: "b", GPUs: 1, GPUMilli: 500, ArriveSecond: 1, RunSeconds: 10}}
	at := time.Unix(0, 0)
	now := func() time.Time { at = at.Add(time.Millisecond); return at }
	p := &slowFirst{Placer: planned(t, &Workload{Nodes: nodes}, place.PolicyBalanced, quickWeights()), spend: func() { at = at.Add(5 * time.Millisecond) }}
	r, err := Live(nodes, tasks, p, LiveOptions{All: true, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	if r.Speed.Max != 5*time.Millisecond || r.Speed.Mean != 2500*time.Microsecond {
		t.Errorf("the longest decision took %v, the mean is %v, want 5ms and 2.5ms", r.Speed.Max, r.Speed.Mean)
	}
}

// slowFirst takes time for the first task.
type slowFirst struct {
	Placer
	spend func()
}

func (p *slowFirst) Arrive(t *Task, now float64) {
	if now == 0 {
		p.spend()
	}
	p.Placer.Arrive(t, now)
}

// Two teams, half the cluster each: what the idle one lent it gets back, though
// its task has the lower priority.
func TestLiveReclaimsQuota(t *testing.T) {
	nodes := []Node{{Name: "n", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 2, Model: "T4"}}
	tasks := []Task{
		{Name: "a1", GPUs: 1, GPUMilli: 1000, RunSeconds: 1000, Priority: 50, Queue: "a"},
		{Name: "a2", GPUs: 1, GPUMilli: 1000, RunSeconds: 1000, Priority: 50, Queue: "a"},
		{Name: "b1", GPUs: 1, GPUMilli: 1000, ArriveSecond: 100, RunSeconds: 100, Priority: 10, Queue: "b"},
	}
	r, err := Live(nodes, tasks, planned(t, &Workload{Nodes: nodes}, place.PolicyBalanced, quickWeights()), LiveOptions{Queue: true, Quotas: EvenQueues(nodes, tasks)})
	if err != nil {
		t.Fatal(err)
	}
	if r.Evictions != 1 || r.Finished != 3 || r.Queues["b"].Mean != 0 {
		t.Errorf("evictions %d, finished %d, b waited %v s", r.Evictions, r.Finished, r.Queues["b"].Mean)
	}
}

// Two teams that want all of the cluster all the time, of which one came first and
// waits with ten times as many tasks: in the replay each gets its share of the work,
// and without queues the one that asks for more gets nearly all.
func TestLiveSharesAreFair(t *testing.T) {
	nodes := []Node{{Name: "n", CPUMilli: 64000, MemoryMiB: 65536, GPUs: 4, Model: "T4"}}
	var tasks []Task
	for i := range 1000 {
		tasks = append(tasks, Task{Name: fmt.Sprintf("greedy-%d", i), GPUs: 1, GPUMilli: 1000, ArriveSecond: float64(i) / 100, RunSeconds: 100, Queue: "greedy", MinRunSeconds: 1000})
	}
	for i := range 100 {
		tasks = append(tasks, Task{Name: fmt.Sprintf("modest-%d", i), GPUs: 1, GPUMilli: 1000, ArriveSecond: 100 + float64(i), RunSeconds: 100, Queue: "modest", MinRunSeconds: 1000})
	}
	for _, row := range []struct {
		name           string
		greedy, modest int64 // guarantees
		low, high      float64
	}{
		{"even", 2000, 2000, 0.45, 0.55}, {"three to one", 3000, 1000, 0.2, 0.3},
	} {
		t.Run(row.name, func(t *testing.T) {
			queues := []place.Queue{{Name: "greedy", GuaranteeMilli: row.greedy}, {Name: "modest", GuaranteeMilli: row.modest}}
			r, err := Live(nodes, tasks, planned(t, &Workload{Nodes: nodes}, place.PolicyBalanced, quickWeights()), LiveOptions{Queue: true, Quotas: queues, HalfLife: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			var modest, all float64
			for _, m := range r.Timeline {
				if m.Second > 1000 && m.Second < 4000 { // both wait all the time
					modest, all = modest+float64(m.ByQueue["modest"]), all+float64(m.UsedMilli)
				}
			}
			t.Logf("of 4 GPUs: greedy %.2f, modest %.2f", 4*(all-modest)/all, 4*modest/all)
			if part := modest / all; part < row.low || part > row.high {
				t.Errorf("the modest team held %.2f of the cluster, want %.2f to %.2f", part, row.low, row.high)
			}
			if r.Evictions != 0 {
				t.Errorf("%d evictions of work that may not be evicted", r.Evictions)
			}
		})
	}
}

// What no node could hold is refused by the product, and does not wait.
func TestWhatIsImpossibleDoesNotWait(t *testing.T) {
	nodes := []Node{{Name: "n1", CPUMilli: 4000, MemoryMiB: 1000, GPUs: 2, Model: "T4"}}
	var tasks []Task
	for i, gpus := range []int{1, 2, 3, 8, 1} {
		tasks = append(tasks, Task{Name: fmt.Sprint(i), GPUs: gpus, GPUMilli: 1000, ArriveSecond: float64(100 * i), RunSeconds: 150})
	}
	r, err := Live(nodes, tasks, planned(t, &Workload{Nodes: nodes}, place.PolicyBalanced, quickWeights()), LiveOptions{Queue: true, All: true})
	if err != nil {
		t.Fatal(err)
	}
	some, large := r.Classes[ClassSome], r.Classes[ClassLarge]
	if r.Never != 2 || r.Impossible != 2 || some.Wait.Tasks != 1 || some.Wait.Mean != 50 || large.Wait.Tasks != 0 || large.BlockedPercent != 100 {
		t.Errorf("never %d, impossible %d, 2 to 4 GPUs %+v, 8 GPUs %+v", r.Never, r.Impossible, some, large)
	}
}

func TestLiveFinishesGeneratedWork(t *testing.T) {
	s := DefaultSynthetic()
	s.Nodes, s.Percent, s.Live = 10, 400, true
	w := Generate(s)
	r, err := Live(w.Nodes, w.Arrivals, planned(t, &w, place.PolicyBalanced, quickWeights()), LiveOptions{Queue: true, Quotas: EvenQueues(w.Nodes, w.Arrivals)})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range r.Timeline {
		var held int64
		for _, milli := range m.ByQueue {
			held += milli
		}
		if held != m.UsedMilli || held > Capacity(w.Nodes) {
			t.Fatalf("at second %v queues hold %d milli, %d are used", m.Second, held, m.UsedMilli)
		}
	}
	if p := r.Panels(Capacity(w.Nodes)); len(p) != 2 || len(p[0].Series) != 5 || len(p[1].Series[0].Points) != len(r.Timeline) {
		t.Errorf("panels %+v", p)
	}
	if r.Started+r.Never != len(w.Arrivals) || r.Finished < r.Started || r.Finished == 0 || r.UsedPercent <= 0 || r.UsedPercent > 100 || r.Fairness > 1.0001 {
		t.Errorf("started %d, finished %d, never %d of %d arrivals; used %.1f%%, fairness %.2f", r.Started, r.Finished, r.Never, len(w.Arrivals), r.UsedPercent, r.Fairness)
	}
}

func TestReadQueues(t *testing.T) {
	got, err := ReadQueues(strings.NewReader("queue,parent,guarantee_milli,limit_milli\na,,4000,8000\nb,a,1000,\n"))
	want := []place.Queue{{Name: "a", GuaranteeMilli: 4000, LimitMilli: 8000}, {Name: "b", Parent: "a", GuaranteeMilli: 1000}}
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := ReadQueues(strings.NewReader("queue\n")); !errors.Is(err, ErrTrace) {
		t.Errorf("missing columns: %v", err)
	}
}

func TestPlotIsXML(t *testing.T) {
	w := smallWorkload()
	r := Replay(w.Nodes, w.Arrivals, NewBestFit(w.Nodes), func() time.Time { return time.Time{} })
	var b bytes.Buffer
	panel := Panel{Title: "a < b", High: 100, Series: []Series{
		{Name: "allocated", Points: r.Curve},
		{Name: "fragmented", Points: Fragmentation(w.Nodes, w.History, w.Arrivals, r.Spots)},
	}}
	if err := WriteSVG(&b, []Panel{panel}, []Heat{HeatOf("end", w.Nodes, w.Arrivals, r.Spots)}); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(&b)
	for {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
