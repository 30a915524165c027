package sim

import (
	"bytes"
	"encoding/xml"
	"errors"
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
