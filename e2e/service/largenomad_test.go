// SPDX-License-Identifier: MPL-2.0

package service

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// largeNomad answers as a Nomad with many nodes of eight H100 each would, which are
// cut into slices, and with Nomad's own limits: 100 connections per client, 64 KiB
// per Variable, an event stream that says no more than what happens from now on.
// It places nothing: what is registered there waits, as in a cluster that is full.
type largeNomad struct {
	URL    string
	nodes  int
	allocs int

	mu        sync.Mutex
	index     uint64
	marks     map[int]string // meta.mark of a node
	changed   map[int]uint64 // modify index of a node
	jobs      map[string]json.RawMessage
	order     []string // of jobs
	variables map[string]api.Variable
	streams   map[chan []byte]bool
	requests  map[string]int // by the first two parts of the path
	open      int
	refused   int // connections
}

const (
	largeSlices      = 80
	allocsPerJob     = 10
	connectionsLimit = 100 // http_max_conns_per_client
	variableLimit    = 64 << 10
)

func startLargeNomad(t *testing.T, nodes, allocs int) *largeNomad {
	t.Helper()
	l := &largeNomad{
		nodes: nodes, allocs: allocs, index: 10, marks: map[int]string{}, changed: map[int]uint64{}, jobs: map[string]json.RawMessage{},
		variables: map[string]api.Variable{}, streams: map[chan []byte]bool{}, requests: map[string]int{},
	}
	s := httptest.NewUnstartedServer(l)
	s.Listener = &limited{s.Listener, l}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			l.mu.Lock()
			l.open--
			l.mu.Unlock()
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	l.URL = s.URL
	return l
}

// limited refuses connections as Nomad does.
type limited struct {
	net.Listener
	nomad *largeNomad
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.nomad.mu.Lock()
		full := l.nomad.open >= connectionsLimit
		if full {
			l.nomad.refused++
		} else {
			l.nomad.open++
		}
		l.nomad.mu.Unlock()
		if !full {
			return c, nil
		}
		_, _ = io.WriteString(c, "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		c.Close()
	}
}

func nodeID(i int) string { return fmt.Sprintf("%08d-1111-1111-1111-111111111111", i) }

// largeNode is a node with the mark in its meta.
func largeNode(i int, index uint64, mark string) *api.Node {
	word := func(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }
	number := func(n int64, unit string) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: unit} }
	n := &api.Node{
		ID: nodeID(i), Name: fmt.Sprintf("gpu-%05d", i), Datacenter: "dc1", NodePool: "default", Status: "ready",
		SchedulingEligibility: "eligible", ModifyIndex: index, Attributes: map[string]string{}, Meta: map[string]string{"mark": mark},
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
			d.Instances = append(d.Instances, &api.NodeDevice{ID: fmt.Sprintf("GPU-%05d-%d::%d", i, g, s), Healthy: true})
		}
		n.NodeResources.Devices = append(n.NodeResources.Devices, d)
	}
	return n
}

// largeAlloc holds eight slices.
func (l *largeNomad) largeAlloc(i int) map[string]any {
	node, g, from := i%l.nodes, i/l.nodes%8, i/(l.nodes*8)*8
	ids := make([]string, 8)
	for s := range ids {
		ids[s] = fmt.Sprintf("GPU-%05d-%d::%d", node, g, from+s)
	}
	return map[string]any{
		"ID": fmt.Sprintf("%08d-2222-2222-2222-222222222222", i), "Namespace": "default", "JobID": fmt.Sprintf("job-%05d", i/allocsPerJob),
		"TaskGroup": "g", "NodeID": nodeID(node), "NodeName": fmt.Sprintf("gpu-%05d", node), "ClientStatus": "running", "DesiredStatus": "run",
		"ModifyIndex": 6, "AllocatedResources": map[string]any{"Tasks": map[string]any{"t": map[string]any{
			"Cpu": map[string]any{"CpuShares": 1000}, "Memory": map[string]any{"MemoryMB": 1000},
			"Devices": []any{map[string]any{"Vendor": "nvidia", "Type": "slice", "Name": fmt.Sprintf("H100/%d", g), "DeviceIDs": ids}},
		}}},
	}
}

func (l *largeNomad) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	parts := strings.SplitN(path, "/", 4)
	l.mu.Lock()
	l.requests[r.Method+" /"+strings.Join(parts[1:min(3, len(parts))], "/")]++
	index := l.index
	l.mu.Unlock()
	w.Header().Set("X-Nomad-Index", strconv.FormatUint(index, 10))
	w.Header().Set("X-Nomad-LastContact", "0") // without it the client sees no next page
	switch {
	case path == "/v1/event/stream":
		l.stream(w, r)
	case path == "/v1/nodes":
		l.listNodes(w)
	case strings.HasPrefix(path, "/v1/node/"):
		i, _ := strconv.Atoi(strings.TrimPrefix(path, "/v1/node/")[:8])
		l.mu.Lock()
		mark, at := l.marks[i], max(5, l.changed[i])
		l.mu.Unlock()
		send(w, largeNode(i, at, mark))
	case path == "/v1/jobs" && r.Method == http.MethodGet:
		l.listJobs(w)
	case path == "/v1/jobs":
		l.register(w, r)
	case strings.HasPrefix(path, "/v1/job/") && strings.HasSuffix(path, "/plan"): // anyone may submit
		send(w, map[string]any{})
	case strings.HasPrefix(path, "/v1/job/"):
		l.job(w, strings.TrimPrefix(path, "/v1/job/"))
	case path == "/v1/validate/job":
		send(w, api.JobValidateResponse{DriverConfigValidated: true})
	case path == "/v1/allocations":
		l.listAllocs(w, r)
	case path == "/v1/evaluations":
		l.listEvals(w)
	case path == "/v1/vars":
		l.listVariables(w, r.URL.Query().Get("prefix"))
	case strings.HasPrefix(path, "/v1/var/"):
		l.variable(w, r, strings.TrimPrefix(path, "/v1/var/"))
	default:
		send(w, []any{})
	}
}

func send(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

// stream says what happens from now on, and that it lives.
func (l *largeNomad) stream(w http.ResponseWriter, r *http.Request) {
	lines := make(chan []byte, 1000)
	l.mu.Lock()
	l.streams[lines] = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.streams, lines)
		l.mu.Unlock()
	}()
	w.(http.Flusher).Flush()
	beat := time.NewTicker(10 * time.Second)
	defer beat.Stop()
	for {
		select {
		case line, open := <-lines:
			if !open {
				return
			}
			_, _ = w.Write(line)
		case <-beat.C:
			_, _ = io.WriteString(w, "{}\n")
		case <-r.Context().Done():
			return
		}
		w.(http.Flusher).Flush()
	}
}

// say tells all streams of an event; the lock is held.
func (l *largeNomad) say(topic, kind, key string, payload any) {
	line, _ := json.Marshal(map[string]any{"Index": l.index, "Events": []any{map[string]any{
		"Topic": topic, "Type": kind, "Key": key, "Namespace": "default", "Index": l.index, "Payload": map[string]any{topic: payload},
	}}})
	for lines := range l.streams {
		lines <- append(line, '\n')
	}
}

// breakStreams ends all streams.
func (l *largeNomad) breakStreams() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for lines := range l.streams {
		close(lines)
		delete(l.streams, lines)
	}
}

// mark changes a node, and tells of it where there is a stream.
func (l *largeNomad) mark(i int, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index++
	l.marks[i], l.changed[i] = text, l.index
	l.say("Node", "NodeRegistration", nodeID(i), largeNode(i, l.index, text))
}

func (l *largeNomad) listNodes(w http.ResponseWriter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]any, l.nodes)
	for i := range list {
		list[i] = map[string]any{"ID": nodeID(i), "ModifyIndex": max(5, l.changed[i])}
	}
	send(w, list)
}

func (l *largeNomad) listJobs(w http.ResponseWriter) {
	var list []any
	for i := range l.allocs / allocsPerJob {
		list = append(list, map[string]any{"ID": fmt.Sprintf("job-%05d", i), "Namespace": "default", "JobModifyIndex": 5})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range l.order {
		list = append(list, map[string]any{"ID": id, "Namespace": "default", "JobModifyIndex": 11})
	}
	send(w, list)
}

// register takes a job. Of those whose names say so it tells that they wait for room.
func (l *largeNomad) register(w http.ResponseWriter, r *http.Request) {
	var body struct{ Job map[string]any }
	if json.NewDecoder(r.Body).Decode(&body) != nil {
		http.Error(w, "no job", http.StatusBadRequest)
		return
	}
	id, _ := body.Job["ID"].(string)
	body.Job["JobModifyIndex"], body.Job["Namespace"] = 11, "default"
	text, _ := json.Marshal(body.Job)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs[id] == nil {
		l.order = append(l.order, id)
	}
	l.jobs[id] = text
	l.index++
	l.say("Job", "JobRegistered", id, json.RawMessage(text))
	if strings.HasPrefix(id, waiting) {
		l.say("Evaluation", "EvaluationUpdated", "eval-"+id, l.blocked(id))
	}
	send(w, map[string]any{"EvalID": "eval-" + id, "JobModifyIndex": 11})
}

// waiting is what the names of jobs begin with for which there is no room.
const waiting = "wait-"

func (l *largeNomad) blocked(id string) map[string]any {
	return map[string]any{"ID": "eval-" + id, "Namespace": "default", "JobID": id, "Status": "blocked", "ModifyIndex": l.index,
		"CreateTime": time.Now().UnixNano(), "QueuedAllocations": map[string]int{"g": 1}, "FailedTGAllocs": map[string]any{"g": map[string]any{}}}
}

func (l *largeNomad) job(w http.ResponseWriter, id string) {
	l.mu.Lock()
	text := l.jobs[id]
	l.mu.Unlock()
	switch {
	case text != nil:
		_, _ = w.Write(text)
	case !strings.HasPrefix(id, "job-") || strings.Contains(id, "/"):
		http.Error(w, "job not found", http.StatusNotFound)
	default:
		eight, five := uint64(8), uint64(5)
		j := job{id: id, count: allocsPerJob, devices: []*api.RequestedDevice{{Name: "nvidia/slice", Count: &eight}}}.api()
		j.JobModifyIndex, j.Namespace = &five, &[]string{"default"}[0]
		send(w, j)
	}
}

func (l *largeNomad) listAllocs(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.URL.Query().Get("next_token"))
	per, _ := strconv.Atoi(r.URL.Query().Get("per_page"))
	list := []any{}
	for i := from; i < min(from+per, l.allocs); i++ {
		list = append(list, l.largeAlloc(i))
	}
	if from+per < l.allocs {
		w.Header().Set("X-Nomad-NextToken", strconv.Itoa(from+per))
	}
	send(w, list)
}

func (l *largeNomad) listEvals(w http.ResponseWriter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := []any{}
	for _, id := range l.order {
		if strings.HasPrefix(id, waiting) {
			list = append(list, l.blocked(id))
		}
	}
	send(w, list)
}

func (l *largeNomad) listVariables(w http.ResponseWriter, prefix string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := []api.VariableMetadata{}
	for path, v := range l.variables {
		if strings.HasPrefix(path, prefix) {
			list = append(list, api.VariableMetadata{Path: path, Namespace: "default", ModifyIndex: v.ModifyIndex})
		}
	}
	send(w, list)
}

func (l *largeNomad) variable(w http.ResponseWriter, r *http.Request, path string) {
	body, _ := io.ReadAll(r.Body)
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Method == http.MethodGet {
		v, ok := l.variables[path]
		if !ok {
			http.Error(w, "variable not found", http.StatusNotFound)
			return
		}
		send(w, v)
		return
	}
	have := l.variables[path]
	if cas := r.URL.Query().Get("cas"); cas != "" && cas != strconv.FormatUint(have.ModifyIndex, 10) {
		w.WriteHeader(http.StatusConflict)
		send(w, have)
		return
	}
	if r.Method == http.MethodDelete {
		delete(l.variables, path)
		return
	}
	var v api.Variable
	_ = json.NewDecoder(bytes.NewReader(body)).Decode(&v)
	size := 0
	for key, value := range v.Items {
		size += len(key) + len(value)
	}
	if size > variableLimit {
		http.Error(w, "variables are limited to 64KiB in total size", http.StatusBadRequest)
		return
	}
	if r.URL.Query().Has("lock-renew") {
		v = have
	} else {
		l.index++
		v.Path, v.Namespace, v.ModifyIndex = path, "default", l.index
		if v.Lock != nil {
			v.Lock.ID = "lock"
		}
		l.variables[path] = v
	}
	send(w, v)
}

// asked is how many requests came since it was asked last, by what they were for.
func (l *largeNomad) asked() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.requests
	l.requests = map[string]int{}
	return was
}
