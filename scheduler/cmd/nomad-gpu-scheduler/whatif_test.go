// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
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

// A task arrives when its job was submitted, however long the service held it or Nomad found
// no room, with what its queue and its job say. The laboratory reads these files in its tests.
func TestExportHasWhatTasksWaitedFor(t *testing.T) {
	h, dir := newHeld(), t.TempDir()
	if code, _, stderr := exportTo(t, dir, h.at(300), h); code != exitOK {
		t.Fatal(stderr)
	}
	for _, name := range []string{"nodes.csv", "tasks.csv", "quotas.csv"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, "export/"+name, string(text))
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
	write := func(from string) []string {
		t.Helper()
		service := httptest.NewServer(h)
		defer service.Close()
		o := exportOptions{online: online{stdout: io.Discard, stderr: io.Discard}, out: dir, now: h.at(300), from: from}
		o.address = service.URL
		if _, err := o.export(); err != nil {
			t.Fatal(err)
		}
		return exportedLines(t, dir, "tasks.csv")
	}
	plain := write("")
	tasks := write(from.Format(time.RFC3339))
	want := []string{
		"resident,default/month,800,400,1,250,500,,0.000,100,0,120,70,team",
		"waited,default/month,800,400,1,250,500,,150.000,200,0,120,70,team",
		"pair,default/month,800,400,2,1000,1000,,300.000,200,0,120,70,team",
		"(hidden)-4,(hidden)/(hidden),0,0,1,250,250,,600.000,100,0,60,50,",
	}
	if len(tasks) != len(want)+len(plain) || !slices.Equal(tasks[:len(want)], want) || !strings.HasPrefix(tasks[len(want)], "first,default/first,500,256,1,250,500,A100,1000.000,") {
		t.Errorf("got\n%s\nwant\n%s\nthen what Nomad remembers", strings.Join(tasks, "\n"), strings.Join(want, "\n"))
	}
	// Without a ledger there is what Nomad remembers.
	delete(h.texts, "/api/v1/gpu/ledger")
	if tasks := write(from.Format(time.RFC3339)); !slices.Equal(tasks, plain) {
		t.Errorf("without a ledger: %q", tasks)
	}
	// What began before the time runs on from its beginning, and what ended before is left out.
	report.From, report.Rows = h.at(150), nil
	h.texts["/api/v1/gpu/ledger"] = report
	tasks = write(h.at(150).Format(time.RFC3339))
	want = []string{ // the first was wanted a second before the time
		"again,default/first,500,256,1,1000,1000,A100,0.000,50,0,120,60,team",
		"blocked,default/blocked,500,256,1,1000,1000,T4,1.000,90,0,0,30,guests",
		"held,default/held,500,256,1,1000,1000,A100,1.000,52,0,120,60,team",
		"default/waits/g/0,default/waits,700,300,1,900,250,,71.000,60,60,120,60,team",
	}
	if !slices.Equal(tasks, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(tasks, "\n"), strings.Join(want, "\n"))
	}
}
