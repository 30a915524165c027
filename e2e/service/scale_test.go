package service

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// largeNomad answers as a Nomad of 1,000 nodes with 8,000 GPUs, 10,000 jobs
// and 10,000 allocs would.
type largeNomad struct {
	mu        sync.Mutex
	variables map[string]api.Variable
	index     uint64
}

const (
	largeNodes  = 1000
	largeAllocs = 10_000
	largeSlices = 80
)

func nodeID(i int) string { return fmt.Sprintf("%08d-1111-1111-1111-111111111111", i) }

func largeNode(i int) *api.Node {
	word := func(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }
	number := func(n int64, unit string) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: unit} }
	n := &api.Node{
		ID: nodeID(i), Name: fmt.Sprintf("gpu-%04d", i), Datacenter: "dc1", NodePool: "default", Status: "ready",
		SchedulingEligibility: "eligible", ModifyIndex: 5, Attributes: map[string]string{},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 200_000}, Memory: api.NodeMemoryResources{MemoryMB: 2 << 20}},
	}
	for k := range 100 {
		n.Attributes[fmt.Sprintf("some.attribute.%d", k)] = fmt.Sprintf("value-%d-%d", i, k)
	}
	for g := range 8 {
		d := &api.NodeDeviceResource{
			Vendor: "nvidia", Type: "slice", Name: fmt.Sprintf("H100/%d", g), Attributes: map[string]*api.Attribute{
				"model": word("NVIDIA H100 80GB HBM3"), "type": word("H100"), "memory": number(81559, "MiB"), "slice_memory": number(1024, "MiB"),
				"slices": number(largeSlices, ""), "sharing": word("mps"),
			},
		}
		for s := range largeSlices {
			d.Instances = append(d.Instances, &api.NodeDevice{ID: fmt.Sprintf("GPU-%04d-%d::%d", i, g, s), Healthy: true})
		}
		n.NodeResources.Devices = append(n.NodeResources.Devices, d)
	}
	return n
}

func largeAlloc(i int) map[string]any {
	node, g, from := i%largeNodes, i/largeNodes%8, i/(largeNodes*8)*8
	ids := make([]string, 8)
	for s := range ids {
		ids[s] = fmt.Sprintf("GPU-%04d-%d::%d", node, g, from+s)
	}
	return map[string]any{
		"ID": fmt.Sprintf("%08d-2222-2222-2222-222222222222", i), "Namespace": "default", "JobID": fmt.Sprintf("job-%05d", i),
		"TaskGroup": "g", "NodeID": nodeID(node), "NodeName": fmt.Sprintf("gpu-%04d", node), "ClientStatus": "running", "DesiredStatus": "run",
		"ModifyIndex": 6, "AllocatedResources": map[string]any{"Tasks": map[string]any{"t": map[string]any{
			"Cpu": map[string]any{"CpuShares": 1000}, "Memory": map[string]any{"MemoryMB": 1000},
			"Devices": []any{map[string]any{"Vendor": "nvidia", "Type": "slice", "Name": fmt.Sprintf("H100/%d", g), "DeviceIDs": ids}},
		}}},
	}
}

func (l *largeNomad) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Nomad-Index", "10")
	send := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	switch path := r.URL.Path; {
	case path == "/v1/event/stream":
		w.(http.Flusher).Flush()
		for r.Context().Err() == nil {
			fmt.Fprintln(w, "{}")
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-time.After(time.Second):
			}
		}
	case path == "/v1/nodes":
		var list []any
		for i := range largeNodes {
			list = append(list, map[string]any{"ID": nodeID(i), "ModifyIndex": 5})
		}
		send(list)
	case strings.HasPrefix(path, "/v1/node/"):
		i, _ := strconv.Atoi(strings.TrimPrefix(path, "/v1/node/")[:8])
		send(largeNode(i))
	case path == "/v1/jobs" && r.Method == http.MethodGet:
		var list []any
		for i := range largeAllocs {
			list = append(list, map[string]any{"ID": fmt.Sprintf("job-%05d", i), "Namespace": "default", "JobModifyIndex": 5})
		}
		send(list)
	case path == "/v1/jobs":
		send(map[string]any{"EvalID": "e", "JobModifyIndex": 11})
	case strings.HasPrefix(path, "/v1/job/"):
		id := strings.TrimPrefix(path, "/v1/job/")
		if !strings.HasPrefix(id, "job-") {
			http.Error(w, "job not found", http.StatusNotFound)
			return
		}
		eight := uint64(8)
		j := job{id: id, devices: []*api.RequestedDevice{{Name: "nvidia/slice", Count: &eight}}}.api()
		five := uint64(5)
		j.JobModifyIndex, j.Namespace = &five, &[]string{"default"}[0]
		send(j)
	case path == "/v1/allocations":
		from, _ := strconv.Atoi(r.URL.Query().Get("next_token"))
		per, _ := strconv.Atoi(r.URL.Query().Get("per_page"))
		var list []any
		for i := from; i < min(from+per, largeAllocs); i++ {
			list = append(list, largeAlloc(i))
		}
		if from+per < largeAllocs {
			w.Header().Set("X-Nomad-NextToken", strconv.Itoa(from+per))
		}
		send(list)
	case strings.HasPrefix(path, "/v1/var/"):
		l.variable(w, r, strings.TrimPrefix(path, "/v1/var/"), send)
	default:
		send([]any{})
	}
}

func (l *largeNomad) variable(w http.ResponseWriter, r *http.Request, path string, send func(any)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Method == http.MethodGet {
		v, ok := l.variables[path]
		if !ok {
			http.Error(w, "not found", http.StatusNotFound)
			return
		}
		send(v)
		return
	}
	var v api.Variable
	_ = json.NewDecoder(r.Body).Decode(&v)
	l.index++
	v.ModifyIndex = l.index
	if v.Lock != nil {
		v.Lock.ID = "lock"
	}
	l.variables[path] = v
	send(v)
}

// TestLargeCluster measures the service as a process on a simulated Nomad of
// 1,000 nodes and 10,000 allocs: its memory, and how long an admission takes.
func TestLargeCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates a cluster of 1,000 nodes")
	}
	s := httptest.NewServer(&largeNomad{variables: map[string]api.Variable{}})
	t.Cleanup(s.Close) // after the service, whose event stream it would wait for
	client, err := api.NewClient(&api.Config{Address: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	r := serve(t.Context(), t, &cluster.Cluster{URL: s.URL, API: client}, "placement {\n candidates = 64\n}\nlisten {\n requests_per_second = 100000\n burst = 100000\n}")
	admitted(t.Context(), t, r, job{id: "first", meta: map[string]string{"gpu": "8G"}})
	t.Logf("first admission after %s", time.Since(begin).Round(time.Millisecond))
	const jobs = 500
	var took []time.Duration
	begin = time.Now()
	for i := range jobs {
		at := time.Now()
		if err := submit(t.Context(), r.API, job{id: fmt.Sprintf("new-%d", i), meta: map[string]string{"gpu": []string{"8G", "0.5", "1", "16G,0.1"}[i%4]}}); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(at))
	}
	all := time.Since(begin)
	slices.Sort(took)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var peak int64
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			peak, _ = strconv.ParseInt(strings.Fields(kib)[0], 10, 64)
		}
		if strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "VmHWM") {
			t.Log(strings.TrimSpace(line))
		}
	}
	t.Logf("%d admissions: p50 %s, p99 %s, %.0f/s", jobs, took[jobs/2], took[jobs*99/100], jobs/all.Seconds())
	if peak > 512<<10 {
		t.Errorf("the service took %d MiB, want at most 512", peak>>10)
	}
}
