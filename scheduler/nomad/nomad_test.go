// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func ptr[T any](v T) *T { return &v }

func word(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }

func number(n int64, unit string) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: unit} }

func instances(healthy string, ids ...string) []*api.NodeDevice {
	var list []*api.NodeDevice
	for _, id := range ids {
		list = append(list, &api.NodeDevice{ID: id, Healthy: healthy == "", HealthDescription: healthy})
	}
	return list
}

func TestDevices(t *testing.T) {
	groups := []*api.NodeDeviceResource{
		{Vendor: "nvidia", Type: "slice", Name: "T4/1", Instances: instances("", "GPU-b::1", "GPU-b::0"), Attributes: map[string]*api.Attribute{
			"model": word("Tesla T4"), "type": word("T4"), "memory": number(15, "GiB"), "slice_memory": number(1024, "MiB"), "sharing": word("mps")}},
		{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA A100-SXM4-80GB", Instances: instances("", "GPU-c", "GPU-d"), Attributes: map[string]*api.Attribute{"memory": number(81920, "MiB"), "unique.closeness": word("numa:1=GPU-c,GPU-d;nvlink:2=GPU-c,GPU-d")}},
		{Vendor: "nvidia", Type: "mig", Name: "3g.20gb", Instances: instances("", "MIG-e"), Attributes: map[string]*api.Attribute{"profile": word("3g.20gb"), "unique.parents": word("GPU-p=MIG-e,MIG-z")}},
		{Vendor: "nvidia", Type: "shared", Name: "T4/2", Instances: instances("cordoned: by hand", "GPU-f::0", "GPU-f::1")},
		{Vendor: "amd", Type: "gpu", Name: "MI250", Instances: instances("xid 79", "GPU-g")},
		{Vendor: "nvidia", Type: "gpu", Name: "Tesla V100-SXM2-16GB", Instances: instances("", "GPU-h")},
		{Vendor: "acme", Type: "fpga", Name: "x", Instances: instances("", "F-1")},
		{Vendor: "acme", Type: "tpu", Name: "y", Instances: instances("", "T-1")},
	}
	h := Hardware{ResourceNames: map[string]string{"npu": "acme/tpu"}, ModelMemoryMiB: map[string]int64{"MI250": 1234, "V100": 32 << 10}}
	got := map[string]device{}
	for _, d := range h.devices(groups) {
		got[d.view.UUID] = d
	}
	if len(got) != 8 {
		t.Fatalf("found %d devices: %v", len(got), got)
	}
	for uuid, ok := range map[string]bool{
		"GPU-b": got["GPU-b"].plan.Mode == gpu.ModeSlice && got["GPU-b"].plan.Slices == 2 && got["GPU-b"].plan.SliceMiB == 1024 && got["GPU-b"].plan.MemoryMiB == 15*1024 && got["GPU-b"].view.Instances[0].ID == "GPU-b::0",
		"GPU-c": got["GPU-c"].plan.Mode == gpu.ModeWhole && got["GPU-c"].plan.Type == "A100" && len(got["GPU-c"].plan.Peers) == 1 && got["GPU-c"].plan.NUMA == 1,
		"MIG-e": got["MIG-e"].plan.Profile == "3g.20gb" && got["MIG-e"].view.ParentUUID == "GPU-p",
		"GPU-f": got["GPU-f"].plan.Replicas == 2 && got["GPU-f"].plan.Cordoned && !got["GPU-f"].plan.Unhealthy,
		"GPU-g": got["GPU-g"].plan.Unhealthy && got["GPU-g"].view.Health == "xid 79" && got["GPU-g"].plan.MemoryMiB == 1234,
		"GPU-h": got["GPU-h"].plan.Type == "V100" && got["GPU-h"].plan.MemoryMiB == 16<<10,
		"T-1":   got["T-1"].plan.Vendor == "acme",
	} {
		if !ok {
			t.Errorf("%s: %+v", uuid, got[uuid])
		}
	}
}

func TestNodeIsReadyOnlyWhenNomadUsesIt(t *testing.T) {
	for _, row := range []struct {
		node  api.Node
		ready bool
	}{
		{api.Node{Status: "ready", SchedulingEligibility: "eligible"}, true},
		{api.Node{Status: "down", SchedulingEligibility: "eligible"}, false},
		{api.Node{Status: "ready", SchedulingEligibility: "ineligible"}, false},
		{api.Node{Status: "ready", SchedulingEligibility: "eligible", DrainStrategy: &api.DrainStrategy{}}, false},
	} {
		if n := NewNode(&row.node, Hardware{}); n.Plan.Ineligible == row.ready {
			t.Errorf("%+v: ineligible %v", row.node, n.Plan.Ineligible)
		}
	}
}

func TestJob(t *testing.T) {
	j := &api.Job{
		ID: ptr("j"), Namespace: ptr("n"), Type: ptr("service"), Priority: ptr(70), JobModifyIndex: ptr(uint64(5)),
		Meta: map[string]string{"gpu_queue": "q"},
		TaskGroups: []*api.TaskGroup{{
			Name: ptr("g"), Count: ptr(2), Constraints: []*api.Constraint{{LTarget: "${node.unique.id}", Operand: "set_contains_any", RTarget: "nomad-gpu,a"}},
			Tasks: []*api.Task{{
				Name: "t", Meta: map[string]string{"gpu": "8G"},
				Resources: &api.Resources{Devices: []*api.RequestedDevice{{Name: "nvidia/slice", Count: ptr(uint64(8))}}},
				Config:    map[string]any{"gpu": []map[string]any{{"compute": 300, "compute_limit": 800}}},
			}},
		}},
	}
	got := NewJob(j, Hardware{})
	task := got.Group("g").Task("t")
	if !got.GPU || got.Group("g").Was == nil || !got.Marked() || got.Group("g").Registered == "" || got.Group("g").Queue != "q" || got.Key.String() != "n/j" || task.GuaranteeMilli != 300 || task.LimitMilli != 800 || got.Group("g").Text() != "8G" {
		t.Errorf("got %+v", got)
	}
	for _, row := range []struct {
		job, group, task map[string]string
		want             string
	}{
		{nil, nil, nil, ""},
		{map[string]string{"gpu_queue": "j"}, map[string]string{"gpu_queue": "g"}, map[string]string{"gpu_queue": "t"}, "t"},
		{map[string]string{"gpu_queue": "j"}, map[string]string{"gpu_queue": "g"}, nil, "g"},
		{map[string]string{"gpu_queue": "j"}, map[string]string{"gpu_queue": ""}, nil, ""},
	} {
		j.Meta, j.TaskGroups[0].Meta, j.TaskGroups[0].Tasks[0].Meta = row.job, row.group, map[string]string{"gpu": "8G"}
		maps.Copy(j.TaskGroups[0].Tasks[0].Meta, row.task)
		if got := NewJob(j, Hardware{}).Group("g").Queue; got != row.want {
			t.Errorf("gpu_queue in %v, %v, %v: the queue is %q, want %q", row.job, row.group, row.task, got, row.want)
		}
	}
	for most, stays := range map[int]bool{0: true, 1: false, 2: false} {
		j.TaskGroups[0].Migrate = &api.MigrateStrategy{MaxParallel: ptr(most)}
		if NewJob(j, Hardware{}).Group("g").Stays != stays || got.Group("g").Stays {
			t.Errorf("a group with migrate { max_parallel = %d } stays: %v", most, !stays)
		}
	}
	g := j.TaskGroups[0]
	g.ShutdownDelay, g.Tasks[0].ShutdownDelay, g.Tasks[0].KillTimeout = ptr(3*time.Second), 2*time.Second, ptr(time.Hour)
	g.Tasks = append(g.Tasks, &api.Task{Name: "brief", KillTimeout: ptr(time.Minute)})
	if got, want := NewJob(j, Hardware{}).Group("g").StopTime, time.Hour+5*time.Second; got != want {
		t.Errorf("it may take %s to stop, want %s", got, want)
	}
	g.Tasks = g.Tasks[:1]
	j.Periodic = &api.PeriodicConfig{}
	if got := NewJob(j, Hardware{}); !got.Stopped || !got.Template {
		t.Errorf("a periodic job starts nothing itself: %+v", got)
	}
	j.Stop = ptr(true)
	if got := NewJob(j, Hardware{}); !got.Stopped || got.Template {
		t.Errorf("a periodic job that was stopped starts children: %+v", got)
	}
	j.Stop = nil
	for block, want := range map[*any]int{
		ptr[any](map[string]any{"priority": "40"}):           40,
		ptr[any]([]any{map[string]any{"priority": 40}}):      40, // without quotes
		ptr[any](map[string]any{"priority": "below_normal"}): gpu.BelowNormalSeatPriority,
		ptr[any](map[string]any{"priority": "101"}):          0,
		ptr[any](map[string]any{"priority": "${meta.p}"}):    0,
		ptr[any]("gpu"): 0,
		ptr[any](nil):   0,
	} {
		task := newTask(&api.Task{Name: "t", Config: map[string]any{"gpu": *block}})
		if task.SeatPriority != want {
			t.Errorf("the priority of the seat in %v is %d, want %d", *block, task.SeatPriority, want)
		}
	}
	if task := newTask(&api.Task{Name: "t", Config: map[string]any{"gpu": map[string]any{"compute": "250"}}}); task.GuaranteeMilli != 250 {
		t.Errorf("a number in quotes: %d", task.GuaranteeMilli)
	}
	if task := newTask(&api.Task{Name: "t", Config: map[string]any{"gpu": map[string]any{"compute": 250}}}); task.GuaranteeMilli != 250 {
		t.Error("a gpu block as an object is not read")
	}
}

func TestMirrorTakesOnlyWhatIsNewer(t *testing.T) {
	m := NewMirror(Hardware{})
	m.at = listed{nodes: 10, allocs: 10, jobs: 10, evals: 10}
	alloc := func(index uint64, status string) event {
		return event{Topic: "Allocation", Index: index, Payload: json.RawMessage(fmt.Sprintf(
			`{"Allocation":{"ID":"a","Namespace":"n","JobID":"j","NodeID":"x","ClientStatus":%q,"DesiredStatus":"run","ModifyIndex":%d,"DeploymentStatus":{"Healthy":true},
			  "AllocatedResources":{"Tasks":{"t":{"Cpu":{"CpuShares":100},"Memory":{"MemoryMB":50},"Devices":[{"Vendor":"nvidia","Type":"slice","Name":"T4/0","DeviceIDs":["G::0"]}]}}}}}`, status, index))}
	}
	eval := func(index uint64, id, status string) event {
		return event{Topic: "Evaluation", Index: index, Payload: json.RawMessage(fmt.Sprintf(
			`{"Evaluation":{"ID":%q,"Namespace":"n","JobID":"j","Status":%q,"ModifyIndex":%d,"FailedTGAllocs":{"g":{"CoalescedFailures":2}}}}`, id, status, index))}
	}
	job := func(index uint64, stop, deleted bool) event {
		return event{Topic: "Job", Type: "JobDeregistered", Key: "j", Namespace: "n", Index: index, Payload: json.RawMessage(fmt.Sprintf(
			`{"Job":{"ID":"j","Namespace":"n","Stop":%v,"JobModifyIndex":%d},"Deleted":%v}`, stop, index, deleted))}
	}
	for _, row := range []struct {
		what string
		e    event
		want int
	}{
		{"the list knows it already", alloc(10, "running"), 0},
		{"new", alloc(11, "running"), 1},
		{"the same again", alloc(11, "running"), 0},
		{"over", alloc(12, "complete"), 1},
		{"over again", alloc(13, "complete"), 0},
		{"blocked", eval(14, "e", "blocked"), 1},
		{"another evaluation ends", eval(15, "f", "complete"), 0},
		{"the blocked one ends", eval(16, "e", "complete"), 1},
		{"it ends again", eval(16, "e", "complete"), 0},
		{"a job", job(17, false, false), 1},
		{"it is stopped", job(18, true, false), 1},
		{"it is stopped", job(18, true, false), 1}, // told again: other fields than the job's changed
		{"it is purged", job(19, true, true), 1},
		{"purged again", job(20, true, true), 0},
	} {
		changes, err := m.event(row.e)
		if err != nil || len(changes) != row.want {
			t.Errorf("%s: %d changes, %v", row.what, len(changes), err)
		}
		for _, c := range changes {
			if c.Alloc != nil && c.Alloc.Holds() && (!c.Alloc.Healthy || c.Alloc.CPUMHz != 100 || c.Alloc.Devices[0].Group != "nvidia/slice/T4/0") {
				t.Errorf("%s: %+v", row.what, c.Alloc)
			}
			if c.Job != nil && c.Job.Stopped != (row.what == "it is stopped") || c.JobGone != nil && *c.JobGone != (JobKey{"n", "j"}) {
				t.Errorf("%s: %+v, gone %v", row.what, c.Job, c.JobGone)
			}
			if c.Blocked != nil && c.Blocked.Missing["g"] != 3 {
				t.Errorf("%s: %+v", row.what, c.Blocked)
			}
		}
	}
	if _, err := m.event(event{Topic: "Node", Index: 99, Payload: json.RawMessage(`[]`)}); err == nil {
		t.Error("a payload that cannot be read was swallowed")
	}
}

// fake is as much of Nomad's HTTP API as the watcher uses.
type fake struct {
	mu     sync.Mutex
	nodes  []map[string]any
	index  string      // 10 when empty
	stream chan string // lines of the event stream; closing it breaks the stream
	opened chan struct{}
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	stream, nodes := f.stream, f.nodes
	w.Header().Set("X-Nomad-Index", cmp.Or(f.index, "10"))
	f.mu.Unlock()
	switch {
	case r.URL.Path == "/v1/event/stream":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		f.opened <- struct{}{}
		for {
			select {
			case line, ok := <-stream:
				if !ok {
					return
				}
				fmt.Fprintln(w, line)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	case r.URL.Path == "/v1/nodes":
		_ = json.NewEncoder(w).Encode(nodes)
	case strings.HasPrefix(r.URL.Path, "/v1/node/"):
		for _, n := range nodes {
			if n["ID"] == strings.TrimPrefix(r.URL.Path, "/v1/node/") {
				_ = json.NewEncoder(w).Encode(n)
			}
		}
	default:
		fmt.Fprintln(w, "[]")
	}
}

// collector is a Sink that hands changes to the test.
type collector chan []Change

func (c collector) Apply(changes []Change, _ uint64) {
	if len(changes) > 0 {
		c <- changes
	}
}

// TestWatchListsAgainAfterABreak breaks the event stream, in which an event
// was missed meanwhile, and looks for it in what comes after.
func TestWatchListsAgainAfterABreak(t *testing.T) {
	f := &fake{stream: make(chan string), opened: make(chan struct{}, 10), nodes: []map[string]any{{"ID": "n1", "Name": "one", "ModifyIndex": 5}}}
	s := httptest.NewServer(f)
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	sink, lost, done := make(collector, 10), make(chan error, 10), make(chan struct{})
	w := &Watcher{Client: NewClient(client), Mirror: NewMirror(Hardware{}), Sink: sink, Heard: func() {}, Lost: func(err error) { lost <- err }}
	go func() { defer close(done); w.Run(ctx) }()
	<-f.opened
	if first := <-sink; len(first) != 1 || first[0].Node.Plan.Name != "one" {
		t.Fatalf("the list gave %+v", first)
	}
	f.stream <- `{}`
	f.stream <- `{"Index":11,"Events":[{"Topic":"Node","Type":"NodeRegistration","Key":"n2","Index":11,"Payload":{"Node":{"ID":"n2","Name":"two","ModifyIndex":11}}}]}`
	if second := <-sink; len(second) != 1 || second[0].Node.Plan.Name != "two" {
		t.Fatalf("the stream gave %+v", second)
	}
	f.mu.Lock()
	f.nodes = []map[string]any{{"ID": "n2", "Name": "two", "ModifyIndex": 11}, {"ID": "n3", "Name": "three", "ModifyIndex": 12}}
	old := f.stream
	f.stream = make(chan string)
	f.mu.Unlock()
	close(old)
	if err := <-lost; err == nil {
		t.Error("the break was not told")
	}
	<-f.opened
	third := append(<-sink, <-sink...)
	if len(third) != 2 || third[0].Node == nil || third[0].Node.Plan.Name != "three" || third[1].NodeGone != "n1" {
		t.Errorf("after the break %+v", third)
	}
	cancel()
	<-done
}

// Nomad may be restored from a snapshot, and everything in it is older then
// than what was heard before.
func TestARewoundNomadIsBelieved(t *testing.T) {
	f := &fake{index: "100", nodes: []map[string]any{{"ID": "n1", "Name": "late", "ModifyIndex": 90}, {"ID": "n2", "Name": "two", "ModifyIndex": 80}}}
	s := httptest.NewServer(f)
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	m := NewMirror(Hardware{})
	if changes, _, err := relist(t.Context(), NewClient(client), m); err != nil || len(changes) != 2 {
		t.Fatalf("got %+v, %v", changes, err)
	}
	f.index, f.nodes = "50", []map[string]any{{"ID": "n1", "Name": "early", "ModifyIndex": 40}}
	changes, at, err := relist(t.Context(), NewClient(client), m)
	if err != nil || len(changes) != 2 || changes[1].NodeGone != "n2" || changes[0].Node == nil || changes[0].Node.Plan.Name != "early" || at.nodes != 50 {
		t.Errorf("after the rewind %+v at %+v, %v", changes, at, err)
	}
	if changes, _, err := relist(t.Context(), NewClient(client), m); err != nil || len(changes) != 0 {
		t.Errorf("then %+v, %v", changes, err)
	}
}

func TestStoreComparesAndSets(t *testing.T) {
	index := uint64(7)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("cas") != fmt.Sprint(index) {
			w.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(w).Encode(api.Variable{ModifyIndex: index})
			return
		}
		_ = json.NewEncoder(w).Encode(api.Variable{ModifyIndex: index + 1})
	}))
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(client, "default")
	if next, err := store.Put(t.Context(), Item{Path: "p", Index: 7}); err != nil || next != 8 {
		t.Errorf("got %d, %v", next, err)
	}
	if _, err := store.Put(t.Context(), Item{Path: "p", Index: 6}); !errors.Is(err, ErrConflict) {
		t.Errorf("got %v", err)
	}
	if err := store.Delete(t.Context(), "p", 6); !errors.Is(err, ErrConflict) {
		t.Errorf("got %v", err)
	}
}

func TestMeasurements(t *testing.T) {
	m := NewMeasurements()
	now := time.Unix(1000, 0)
	stats := func(at time.Time, percent int64) *api.DeviceStats {
		return &api.DeviceStats{Timestamp: at, Stats: &api.StatObject{Attributes: map[string]*api.StatValue{
			"GPU utilization": {IntNumeratorVal: ptr(percent)}, "Memory state": {IntNumeratorVal: ptr(int64(5000)), IntDenominatorVal: ptr(int64(16000))},
			"Power usage": {FloatNumeratorVal: ptr(61.6)}, "BAR1 buffer state": {IntNumeratorVal: ptr(int64(1))},
		}}}
	}
	m.add("GPU-a", stats(now, 30))
	m.add("GPU-a", stats(now.Add(-time.Minute), 90))
	m.add("GPU-a", &api.DeviceStats{Timestamp: now.Add(time.Minute), Stats: &api.StatObject{}}) // a free slice
	if v := m.GPUs["GPU-a"]; v.Milli != 300 || v.MemoryMiB != 5000 || v.PowerW != 62 || v.TemperatureC != -1 {
		t.Errorf("got %+v", v)
	}
}

func TestActorReadsTheAllocsOfANode(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if filter := r.URL.Query().Get("filter"); !strings.Contains(filter, `NodeID == "n1"`) || r.URL.Query().Get("namespace") != "*" {
			t.Errorf("asked %s", r.URL)
		}
		w.Header().Set("X-Nomad-Index", "10")
		fmt.Fprintln(w, `[{"ID":"a1","NodeID":"n1","ClientStatus":"running","DesiredStatus":"stop","ModifyIndex":9}]`)
	}))
	defer s.Close()
	client, err := api.NewClient(&api.Config{Address: s.URL, HttpClient: s.Client()})
	if err != nil {
		t.Fatal(err)
	}
	allocs, index, err := NewActor(client).Allocs(t.Context(), "n1")
	if err != nil || index != 10 || len(allocs) != 1 || !allocs[0].Stopping || allocs[0].Index != 9 {
		t.Errorf("got %+v at %d, %v", allocs, index, err)
	}
}
