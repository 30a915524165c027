// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// exportCluster is what Nomad and the service tell of one node with two GPUs, one of
// them in slices, and one without.
func exportCluster(noon time.Time) http.HandlerFunc {
	text := func(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }
	mib := func(n int64) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: "MiB"} }
	instances := func(ids ...string) (out []*api.NodeDevice) {
		for _, id := range ids {
			out = append(out, &api.NodeDevice{ID: id, Healthy: true})
		}
		return out
	}
	alloc := func(id, job, node, device string, began, ended time.Time, ids ...string) *api.AllocationListStub {
		a := &api.AllocationListStub{ID: id, Namespace: "default", JobID: job, NodeID: node, ClientStatus: "running", DesiredStatus: "run", CreateTime: began.UnixNano(),
			TaskStates: map[string]*api.TaskState{"t": {StartedAt: began, FinishedAt: ended}}}
		if !ended.IsZero() {
			a.ClientStatus = "complete"
		}
		if began.IsZero() {
			a.CreateTime, a.ClientStatus = noon.UnixNano(), "pending"
		}
		task := &api.AllocatedTaskResources{Cpu: api.AllocatedCpuResources{CpuShares: 500}, Memory: api.AllocatedMemoryResources{MemoryMB: 256}}
		if len(ids) > 0 {
			task.Devices = []*api.AllocatedDeviceResource{{Vendor: "nvidia", Type: device, Name: "A100/0", DeviceIDs: ids}}
		}
		a.AllocatedResources = &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"t": task}}
		return a
	}
	gpuNode := &api.Node{ID: "n1", Name: "gpu-1", Status: "ready", SchedulingEligibility: "eligible", NodeResources: &api.NodeResources{
		Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 262144},
		Devices: []*api.NodeDeviceResource{
			{Vendor: "nvidia", Type: "slice", Name: "A100/0", Instances: instances("GPU-a::0", "GPU-a::1", "GPU-a::2"), Attributes: map[string]*api.Attribute{
				"model": text("NVIDIA A100"), "type": text("A100"), "memory": mib(3072), "slice_memory": mib(1024)}},
			{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA A100", Instances: instances("GPU-b"), Attributes: map[string]*api.Attribute{"model": text("NVIDIA A100"), "type": text("A100"), "memory": mib(3072)}},
		},
	}}
	answers := map[string]any{
		"/v1/nodes":   []*api.NodeListStub{{ID: "n1"}, {ID: "n2"}},
		"/v1/node/n1": gpuNode,
		"/v1/node/n2": &api.Node{ID: "n2", Name: "cpu-1", NodeResources: &api.NodeResources{}},
		"/v1/allocations": []*api.AllocationListStub{
			alloc("ended", "train", "n1", "slice", noon, noon.Add(100*time.Second), "GPU-a::0", "GPU-a::1"),
			alloc("runs", "train", "n1", "slice", noon.Add(50*time.Second), time.Time{}, "GPU-a::0", "GPU-a::1", "GPU-a::2"),
			alloc("long", "other", "n1", "gpu", noon.Add(60*time.Second), time.Time{}, "GPU-b"),
			alloc("host", "web", "n1", "", noon.Add(70*time.Second), noon.Add(80*time.Second)),
			alloc("elsewhere", "web", "n2", "", noon, noon.Add(time.Hour)),
			alloc("never", "web", "n1", "", time.Time{}, time.Time{}),
		},
		"/v1/evaluations":        []*api.Evaluation{},
		"/v1/job/train/versions": versionsOf(versionAt("train", 0, noon, map[string]string{"gpu": "1G"}, "", nil)),
		"/v1/job/pair/versions":  versionsOf(versionAt("pair", 0, noon, map[string]string{"gpu": "2"}, "", nil)),
		"/v1/job/own/versions":   versionsOf(versionAt("own", 0, noon, nil, "", &api.RequestedDevice{Name: "nvidia/slice", Count: new(uint64(2))})),
		clusterPath: &view.Cluster{Pending: []view.Pending{
			{Namespace: "default", JobID: "train", Group: "g", Missing: 2, Ask: "1G", Since: noon.Add(90 * time.Second)},
			{Namespace: "default", JobID: "pair", Group: "g", Missing: 1, Ask: "2", Since: noon.Add(95 * time.Second)},
			{Namespace: "default", JobID: "own", Group: "g", Missing: 1, Ask: "2 x nvidia/slice", Since: noon.Add(99 * time.Second)},
		}},
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if answer, ok := answers[r.URL.Path]; ok {
			_ = json.NewEncoder(w).Encode(answer)
			return
		}
		http.NotFound(w, r)
	}
}

// versionAt is a job of one group and task as it was registered once; held says what the
// service has it wait for.
func versionAt(id string, version uint64, submitted time.Time, meta map[string]string, held string, device *api.RequestedDevice) *api.Job {
	cpu, memory, group, namespace, kind, priority, count := 700, 300, "g", "default", "batch", 60, 1
	at := submitted.UnixNano()
	task := &api.Task{Name: "t", Driver: "containerd", Meta: meta, Resources: &api.Resources{CPU: &cpu, MemoryMB: &memory}}
	if device != nil {
		task.Resources.Devices = []*api.RequestedDevice{device}
	}
	g := &api.TaskGroup{Name: &group, Count: &count, Tasks: []*api.Task{task}}
	if held != "" {
		g.Constraints = []*api.Constraint{{LTarget: "nomad-gpu: waits for " + held, RTarget: "admitted", Operand: "="}}
	}
	return &api.Job{ID: &id, Name: &id, Namespace: &namespace, Type: &kind, Priority: &priority, Version: &version, SubmitTime: &at, TaskGroups: []*api.TaskGroup{g}}
}

func versionsOf(list ...*api.Job) map[string]any { return map[string]any{"Versions": list} }

func exportTo(t *testing.T, dir string, now time.Time, h http.Handler) (code int, stdout, stderr string) {
	t.Helper()
	service := httptest.NewServer(h)
	defer service.Close()
	var out, errs bytes.Buffer
	o := exportOptions{online: online{stdout: &out, stderr: &errs}, out: dir, now: now}
	o.address = service.URL
	done, err := o.export()
	if err != nil {
		return o.fail(err), out.String(), errs.String()
	}
	return exitOK, strings.Join([]string{done.NodesFile, done.TasksFile}, " "), ""
}

// exportedLines are the lines of a file that was exported, without their header.
func exportedLines(t *testing.T, dir, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")[1:]
}

func TestExportHasWhatRanRunsAndWaits(t *testing.T) {
	noon, dir := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC), t.TempDir()
	code, _, stderr := exportTo(t, dir, noon.Add(250*time.Second), exportCluster(noon))
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	if got := exportedLines(t, dir, "nodes.csv"); !slices.Equal(got, []string{"gpu-1,64000,262144,2,A100,3072"}) {
		t.Errorf("nodes %q", got)
	}
	want := []string{
		"ended,default/train,500,256,1,666,666,,0.000,100,0,0,60,",
		"runs,default/train,500,256,1,1000,1000,,50.000,200,0,0,60,", // longer than those of its job that have ended
		"long,default/other,500,256,1,1000,1000,,60.000,190,0,0,50,",
		"host,default/web,500,256,0,0,0,,70.000,10,0,0,50,",
		"default/train/g/0,default/train,700,300,1,333,333,,90.000,100,0,0,60,", // as long as those of its job
		"default/train/g/1,default/train,700,300,1,333,333,,90.000,100,0,0,60,",
		"default/pair/g/0,default/pair,700,300,2,1000,1000,,95.000,55,0,0,60,", // as long as those of all jobs
		"default/own/g/0,default/own,700,300,1,666,666,,99.000,55,0,0,60,",
	}
	if got := exportedLines(t, dir, "tasks.csv"); !slices.Equal(got, want) {
		t.Errorf("tasks:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestExportSaysWhatFails(t *testing.T) {
	noon := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	whole := exportCluster(noon)
	for _, c := range []struct{ missing, says string }{
		{"/v1/nodes", "list nodes"}, {"/v1/node/n1", `read node "n1"`}, {"/v1/allocations", "list allocs"},
		{"/v1/job/train/versions", `read job "default/train"`}, {"/v1/evaluations", "list evaluations"}, {clusterPath, "ask the placement service what waits"},
	} {
		code, _, stderr := exportTo(t, t.TempDir(), noon, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == c.missing {
				http.Error(w, "no", http.StatusForbidden)
				return
			}
			whole(w, r)
		}))
		if code != exitError || !strings.Contains(stderr, c.says) {
			t.Errorf("without %s: exit %d, %q", c.missing, code, stderr)
		}
	}
	if code, _, stderr := exportTo(t, filepath.Join(t.TempDir(), "gone"), noon, whole); code != exitError || !strings.Contains(stderr, "nodes.csv") {
		t.Errorf("without a directory: exit %d, %q", code, stderr)
	}
}

// What has not ended runs as long as the ended of its job, of all, or an hour.
func TestEstimateRuns(t *testing.T) {
	tasks := []exportedTask{{job: "a", run: 10}, {job: "a", run: 100, ended: true}, {job: "a", run: 300, ended: true}, {job: "b", run: 5}, {job: "b", run: 1000}}
	estimateRuns(tasks)
	for i, want := range []time.Duration{200, 100, 300, 200, 1000} {
		if tasks[i].run != want {
			t.Errorf("task %d runs %d, want %d", i, tasks[i].run, want)
		}
	}
	alone := []exportedTask{{job: "a", run: 10}}
	if estimateRuns(alone); alone[0].run != time.Hour {
		t.Errorf("where nothing has ended a task runs %s", alone[0].run)
	}
}
