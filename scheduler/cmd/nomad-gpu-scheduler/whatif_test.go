package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/sim"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// held is a cluster with a queue, of which one job was held and another waits in Nomad for
// room. Its nodes are an A100 in four slices and a T4.
type held struct {
	noon  time.Time
	texts map[string]any
}

func (h *held) at(seconds int) time.Time { return h.noon.Add(time.Duration(seconds) * time.Second) }

func newHeld() *held {
	h := &held{noon: time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)}
	node := func(id, model, kind string, slices int) *api.Node {
		d := &api.NodeDeviceResource{Vendor: "nvidia", Type: kind, Name: model, Attributes: map[string]*api.Attribute{
			"model": {StringVal: new("NVIDIA " + model)}, "type": {StringVal: &model}, "memory": {IntVal: new(int64(4096)), Unit: "MiB"}}}
		if kind == "slice" {
			d.Attributes["slice_memory"] = &api.Attribute{IntVal: new(int64(1024)), Unit: "MiB"}
		}
		for i := range slices {
			instance := "GPU-" + id
			if kind == "slice" {
				instance += fmt.Sprintf("::%d", i)
			}
			d.Instances = append(d.Instances, &api.NodeDevice{ID: instance, Healthy: true})
		}
		return &api.Node{ID: id, Name: id, Status: "ready", SchedulingEligibility: "eligible", NodeResources: &api.NodeResources{
			Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 65536}, Devices: []*api.NodeDeviceResource{d}}}
	}
	alloc := func(id, job string, version uint64, eval string, created, ended int, node, kind, name string, ids ...string) *api.AllocationListStub {
		s := &api.AllocationListStub{ID: id, Namespace: "default", JobID: job, JobVersion: version, TaskGroup: "g", EvalID: eval, NodeID: node, ClientStatus: "complete", DesiredStatus: "run",
			CreateTime: h.at(created).UnixNano(), TaskStates: map[string]*api.TaskState{"t": {StartedAt: h.at(created), FinishedAt: h.at(ended)}}}
		s.AllocatedResources = &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"t": {
			Cpu: api.AllocatedCpuResources{CpuShares: 500}, Memory: api.AllocatedMemoryResources{MemoryMB: 256},
			Devices: []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: kind, Name: name, DeviceIDs: ids}}}}}
		return s
	}
	eval := func(id, job, trigger, before, status string, created int) *api.Evaluation {
		return &api.Evaluation{ID: id, Namespace: "default", JobID: job, TriggeredBy: trigger, PreviousEval: before, Status: status, CreateTime: h.at(created).UnixNano()}
	}
	meta := func(request, limit string) map[string]string {
		return map[string]string{"gpu": request, "gpu_time_limit": limit}
	}
	again := alloc("again", "first", 0, "e-again", 150, 200, "n2", "gpu", "T4", "GPU-n2")
	failed := alloc("first", "first", 0, "e-first", 0, 100, "n1", "slice", "A100", "GPU-n1::0", "GPU-n1::1")
	failed.NextAllocation = "again"
	half := versionAt("first", 0, h.at(0), meta("2G,0.25(A100)", ""), "", nil)
	half.TaskGroups[0].Tasks[0].Config = map[string]any{"gpu": []any{map[string]any{"compute": 250}}}
	h.texts = map[string]any{
		"/v1/nodes":   []*api.NodeListStub{{ID: "n1"}, {ID: "n2"}},
		"/v1/node/n1": node("n1", "A100", "slice", 4),
		"/v1/node/n2": node("n2", "T4", "gpu", 1),
		"/v1/allocations": []*api.AllocationListStub{
			failed, again,
			// It was held at 10 s, again at 30 s, and let go at 101 s.
			alloc("held", "held", 2, "e-held", 102, 202, "n1", "slice", "A100", "GPU-n1::0", "GPU-n1::1", "GPU-n1::2", "GPU-n1::3"),
			// Nomad looked for its room from 20 s on.
			alloc("blocked", "blocked", 0, "e-blocked-2", 140, 240, "n2", "gpu", "T4", "GPU-n2"),
			// Nomad has forgotten its evaluation and its job.
			alloc("old", "old", 0, "gone", 5, 15, "n2", "gpu", "T4", "GPU-n2"),
		},
		"/v1/evaluations": []*api.Evaluation{
			eval("e-first", "first", "job-register", "", "complete", 0), eval("e-again", "first", "alloc-failure", "e-first", "complete", 149),
			eval("e-held", "held", "job-register", "", "complete", 101),
			eval("e-blocked", "blocked", "job-register", "", "complete", 20), eval("e-blocked-2", "blocked", "queued-allocs", "e-blocked", "complete", 21),
			eval("e-waits", "waits", "queued-allocs", "", "blocked", 230),
		},
		"/v1/job/first/versions": versionsOf(half),
		"/v1/job/held/versions": versionsOf(versionAt("held", 2, h.at(101), meta("1(A100|H100)", ""), "", nil),
			versionAt("held", 1, h.at(30), meta("1(A100|H100)", ""), "room: no node has room", nil), versionAt("held", 0, h.at(10), meta("1(A100|H100)", ""), "quota: it is full", nil)),
		"/v1/job/blocked/versions": versionsOf(versionAt("blocked", 0, h.at(20), map[string]string{"gpu": "1(!A100)", "gpu_queue": "guests"}, "", nil)),
		"/v1/job/waits/versions":   versionsOf(versionAt("waits", 1, h.at(229), meta("1G,0.9", "1m"), "", nil), versionAt("waits", 0, h.at(220), meta("1G,0.9", "1m"), "quota: it is full", nil)),
		clusterPath: &view.Cluster{
			MinRunS: 60,
			Queues: []view.Queue{
				{Name: "guests", AllowNamespaces: []string{"default"}, MaxPriority: 30, MinRunS: 0, Models: []string{"T4"}},
				{Name: "team", Namespaces: []string{"default"}, QuotaMilli: 2000, MaxMilli: 2000, MaxPriority: 100, MinRunS: 120},
			},
			Pending: []view.Pending{{Namespace: "default", JobID: "waits", Group: "g", Missing: 1, Ask: "1G,0.9", Since: h.at(231)}},
		},
	}
	return h
}

func (h *held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if answer, ok := h.texts[r.URL.Path]; ok {
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	http.NotFound(w, r)
}

func readExported[T any](t *testing.T, dir, name string, read func(*os.File) (T, error)) T {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out, err := read(f)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return out
}

// A task arrives when its job was submitted, however long the service held it or Nomad found
// no room, with what its queue and its job say.
func TestExportHasWhatTasksWaitedFor(t *testing.T) {
	h, dir := newHeld(), t.TempDir()
	if code, _, stderr := exportTo(t, dir, h.at(300), h); code != exitOK {
		t.Fatal(stderr)
	}
	tasks := readExported(t, dir, "tasks.csv", func(f *os.File) ([]sim.Task, error) { return sim.ReadTasks(f) })
	want := []sim.Task{
		{Name: "first", CPUMilli: 500, MemoryMiB: 256, GPUs: 1, GPUMilli: 250, GPUMemoryMilli: 500, Models: []string{"A100"}, RunSeconds: 100, Priority: 60, Queue: "team", MinRunSeconds: 120},
		{Name: "old", ArriveSecond: 5, CPUMilli: 500, MemoryMiB: 256, GPUs: 1, GPUMilli: 1000, GPUMemoryMilli: 1000, RunSeconds: 10, Priority: 50, Queue: "team", MinRunSeconds: 120},
		{Name: "held", ArriveSecond: 10, CPUMilli: 500, MemoryMiB: 256, GPUs: 1, GPUMilli: 1000, GPUMemoryMilli: 1000, Models: []string{"A100"}, RunSeconds: 100, Priority: 60, Queue: "team", MinRunSeconds: 120},
		{Name: "blocked", ArriveSecond: 20, CPUMilli: 500, MemoryMiB: 256, GPUs: 1, GPUMilli: 1000, GPUMemoryMilli: 1000, Models: []string{"T4"}, RunSeconds: 100, Priority: 30, Queue: "guests"},
		{Name: "again", ArriveSecond: 149, CPUMilli: 500, MemoryMiB: 256, GPUs: 1, GPUMilli: 1000, GPUMemoryMilli: 1000, Models: []string{"A100"}, RunSeconds: 50, Priority: 60, Queue: "team", MinRunSeconds: 120},
		{Name: "default/waits/g/0", ArriveSecond: 220, CPUMilli: 700, MemoryMiB: 300, GPUs: 1, GPUMilli: 900, GPUMemoryMilli: 250, RunSeconds: 60, LimitSeconds: 60, Priority: 60, Queue: "team", MinRunSeconds: 120},
	}
	for i := range max(len(tasks), len(want)) {
		if i >= len(tasks) || i >= len(want) || !reflect.DeepEqual(tasks[i], want[i]) {
			t.Fatalf("task %d: got\n%+v\nwant\n%+v", i, tasks, want)
		}
	}
	quotas := readExported(t, dir, "quotas.csv", func(f *os.File) ([]place.Queue, error) { return sim.ReadQueues(f) })
	if len(quotas) != 2 || quotas[1] != (place.Queue{Name: "team", GuaranteeMilli: 2000, LimitMilli: 2000}) {
		t.Errorf("quotas %+v", quotas)
	}
}

// What if the queue had one GPU instead of two: tasks of an exported cluster wait for it.
func TestQuotasChangeTheWaitsOfAnExportedCluster(t *testing.T) {
	h, dir := newHeld(), t.TempDir()
	if code, _, stderr := exportTo(t, dir, h.at(300), h); code != exitOK {
		t.Fatal(stderr)
	}
	nodes := readExported(t, dir, "nodes.csv", func(f *os.File) ([]sim.Node, error) { return sim.ReadNodes(f) })
	tasks := readExported(t, dir, "tasks.csv", func(f *os.File) ([]sim.Task, error) { return sim.ReadTasks(f) })
	at := slices.IndexFunc(tasks, func(t sim.Task) bool { return t.Name == "old" })
	for limit, want := range map[int64]float64{2000: 0, 1000: 305} { // milli, and how long a task waits that comes after those of higher priority
		p, err := sim.NewPlanned(nodes, tasks, place.PolicyBalanced, place.DefaultWeights())
		if err != nil {
			t.Fatal(err)
		}
		r, err := sim.Live(nodes, tasks, p, sim.LiveOptions{Queue: true, All: true, Quotas: []place.Queue{{Name: "team", GuaranteeMilli: limit, LimitMilli: limit}, {Name: "guests"}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Starts[at].Second - tasks[at].ArriveSecond; got != want {
			t.Errorf("with %d milli it waits %v s, want %v: %+v", limit, got, want, r.Starts)
		}
	}
}

// What Nomad has forgotten comes from the ledger, cut to the time that is asked about, and
// nothing is there twice.
func TestExportReadsTheLedger(t *testing.T) {
	h, dir := newHeld(), t.TempDir()
	from := h.at(-1000)
	at := func(seconds int) *time.Time { when := h.at(seconds); return &when }
	row := func(alloc, gpu string, from, to int, change func(*ledger.Row)) ledger.Row {
		r := ledger.Row{Queue: "team", Namespace: "default", Job: "month", Group: "g", Task: "t", Alloc: alloc, GPU: gpu, Type: "A100", From: at(from), To: at(to), Ended: "complete",
			AskedGPUs: 0.25, AskedGiB: 2, Milli: 500, Priority: 70, HostMHz: 800, HostMiB: 400}
		if change != nil {
			change(&r)
		}
		return r
	}
	report := &ledger.Report{From: from, To: h.at(300), By: ledger.ByEntry, Rows: []ledger.Row{
		row("resident", "GPU-n1", -1000, -900, func(r *ledger.Row) { r.Wanted = at(-2000) }), // it ran before
		row("waited", "GPU-n1", -800, -600, func(r *ledger.Row) { r.Wanted = at(-850) }),
		row("pair", "GPU-x", -700, -500, func(r *ledger.Row) { r.AskedGPUs, r.AskedGiB, r.Milli = 1, 4, 1000 }),
		row("pair", "GPU-y", -700, -500, func(r *ledger.Row) { r.AskedGPUs, r.AskedGiB, r.Milli = 1, 4, 1000 }),
		row("", "GPU-x", -400, -300, func(r *ledger.Row) {
			r.Namespace, r.Job, r.Group, r.Task = "(hidden)", "(hidden)", "", ""
			r.Queue, r.Priority, r.AskedGPUs, r.AskedGiB, r.Milli, r.HostMHz, r.HostMiB = "", 0, 0, 0, 250, 0, 0
		}),
		row("held", "GPU-n1", 102, 202, nil), // Nomad knows more of it
	}}
	h.texts["/api/v1/gpu/ledger"] = report
	write := func(from string) []sim.Task {
		t.Helper()
		service := httptest.NewServer(h)
		defer service.Close()
		o := exportOptions{online: online{stdout: io.Discard, stderr: io.Discard}, out: dir, now: h.at(300), from: from}
		o.address = service.URL
		if _, err := o.export(); err != nil {
			t.Fatal(err)
		}
		return readExported(t, dir, "tasks.csv", func(f *os.File) ([]sim.Task, error) { return sim.ReadTasks(f) })
	}
	plain := write("")
	tasks := write(from.Format(time.RFC3339))
	want := []sim.Task{
		{Name: "resident", CPUMilli: 800, MemoryMiB: 400, GPUs: 1, GPUMilli: 250, GPUMemoryMilli: 500, RunSeconds: 100, Priority: 70, Queue: "team", MinRunSeconds: 120},
		{Name: "waited", ArriveSecond: 150, CPUMilli: 800, MemoryMiB: 400, GPUs: 1, GPUMilli: 250, GPUMemoryMilli: 500, RunSeconds: 200, Priority: 70, Queue: "team", MinRunSeconds: 120},
		{Name: "pair", ArriveSecond: 300, CPUMilli: 800, MemoryMiB: 400, GPUs: 2, GPUMilli: 1000, GPUMemoryMilli: 1000, RunSeconds: 200, Priority: 70, Queue: "team", MinRunSeconds: 120},
		{Name: "(hidden)-4", ArriveSecond: 600, GPUs: 1, GPUMilli: 250, GPUMemoryMilli: 250, RunSeconds: 100, Priority: 50, MinRunSeconds: 60},
	}
	if len(tasks) != len(want)+len(plain) || !reflect.DeepEqual(tasks[:len(want)], want) || tasks[len(want)].Name != "first" || tasks[len(want)].ArriveSecond != 1000 {
		t.Errorf("got\n%+v\nwant\n%+v, then what Nomad remembers", tasks, want)
	}
	// Without a ledger there is what Nomad remembers.
	delete(h.texts, "/api/v1/gpu/ledger")
	if tasks := write(from.Format(time.RFC3339)); !reflect.DeepEqual(tasks, plain) {
		t.Errorf("without a ledger: %+v", tasks)
	}
	// What began before the time runs on from its beginning, and what ended before is left out.
	report.From, report.Rows = h.at(150), nil
	h.texts["/api/v1/gpu/ledger"] = report
	tasks = write(h.at(150).Format(time.RFC3339))
	if len(tasks) != 4 || tasks[0].ArriveSecond != 0 || tasks[3].Name != "default/waits/g/0" {
		t.Fatalf("got %+v", tasks)
	}
	for name, want := range map[string][2]float64{"again": {0, 50}, "held": {1, 52}, "blocked": {1, 90}} { // the first was wanted a second before the time
		if i := slices.IndexFunc(tasks, func(t sim.Task) bool { return t.Name == name }); i < 0 || tasks[i].ArriveSecond != want[0] || tasks[i].RunSeconds != want[1] {
			t.Errorf("%s: %+v, want it at %v s, for %v s", name, tasks, want[0], want[1])
		}
	}
}
