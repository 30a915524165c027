// SPDX-License-Identifier: MPL-2.0

package api

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// TestGPUsAreCountedOnce: the answer counts the GPUs that a person would count, also
// where they are divided.
func TestGPUsAreCountedOnce(t *testing.T) {
	instance := func(parent string, healthy bool) view.GPU {
		return view.GPU{UUID: "MIG-" + parent, ParentUUID: parent, Healthy: healthy}
	}
	for name, test := range map[string]struct {
		gpus           []view.GPU
		total, healthy int
	}{
		"whole":                      {[]view.GPU{{UUID: "a", Healthy: true}, {UUID: "b"}}, 2, 1},
		"divided":                    {[]view.GPU{instance("a", true), instance("a", true)}, 1, 1},
		"with its parent":            {[]view.GPU{{UUID: "a", Healthy: true}, instance("a", true), instance("a", true)}, 1, 1},
		"one instance of it is sick": {[]view.GPU{instance("a", true), instance("a", false), instance("a", true)}, 1, 0},
		"its parent is sick":         {[]view.GPU{{UUID: "a"}, instance("a", true)}, 1, 0},
		"two that are divided":       {[]view.GPU{instance("a", true), instance("b", false)}, 2, 1},
		"none":                       {nil, 0, 0},
	} {
		h := healthOf(&view.Cluster{Nodes: []view.Node{{Status: "ready", Eligible: true, GPUs: test.gpus}}})
		if h.TotalGPUs != test.total || h.HealthyGPUs != test.healthy {
			t.Errorf("%s: %d of %d are healthy, want %d of %d", name, h.HealthyGPUs, h.TotalGPUs, test.healthy, test.total)
		}
	}
}

func TestProblemsNameTheirNode(t *testing.T) {
	for name, test := range map[string]struct {
		node view.Node
		want string
	}{
		"down":       {view.Node{Name: "n", Status: "down", Eligible: true, GPUs: []view.GPU{{Healthy: true}}}, "the node is down"},
		"draining":   {view.Node{Name: "n", Status: "ready", Eligible: true, Draining: true, GPUs: []view.GPU{{Healthy: true}}}, "being drained"},
		"ineligible": {view.Node{Name: "n", Status: "ready", GPUs: []view.GPU{{Healthy: true}}}, "not eligible"},
		"cordoned":   {view.Node{Name: "n", Status: "ready", Eligible: true, GPUs: []view.GPU{{Healthy: true, Cordoned: true}}}, "cordoned"},
		"sick":       {view.Node{Name: "n", Status: "ready", Eligible: true, GPUs: []view.GPU{{Health: "xid 79"}}}, "xid 79"},
		"no GPUs":    {view.Node{Name: "n", Status: "down"}, ""},
	} {
		h := healthOf(&view.Cluster{Nodes: []view.Node{test.node}})
		switch {
		case test.want == "" && len(h.Problems) != 0:
			t.Errorf("%s: %+v", name, h.Problems)
		case test.want != "" && (len(h.Problems) != 1 || h.Problems[0].NodeName != "n" || !strings.Contains(h.Problems[0].Reason, test.want)):
			t.Errorf("%s: %+v, want one of node n with %q", name, h.Problems, test.want)
		}
	}
}

func TestHealthTellsOfTheLedgersOutage(t *testing.T) {
	since := time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)
	c := &view.Cluster{Nodes: []view.Node{{Status: "ready", Eligible: true, GPUs: []view.GPU{{Healthy: true}}}}}
	if h := healthOf(c); h.Status != healthy || len(h.Problems) != 0 {
		t.Errorf("got %+v", h)
	}
	for dropped, want := range map[int]string{
		0: "the ledger has not been written since 2026-10-05T12:00:00Z, and decisions go on: 7 records wait in memory; see its disk or database, and the service's log",
		3: "the ledger has not been written since 2026-10-05T12:00:00Z, and decisions go on: 7 records wait in memory, and 3 were dropped; see its disk or database, and the service's log",
	} {
		c.Ledger = &view.LedgerOutage{Since: since, Waiting: 7, Dropped: dropped}
		if h := healthOf(c); h.Status != degraded || len(h.Problems) != 1 || h.Problems[0].Reason != want {
			t.Errorf("got %+v", h)
		}
	}
}

// TestBodiesAtTheirBounds sends what is just allowed, and what is just not.
func TestBodiesAtTheirBounds(t *testing.T) {
	const allocate, setup = "/api/v1/gpu/allocate", "/api/v1/gpu/setup-pytorch"
	owner := strings.Repeat("o", maxOwner)
	for name, test := range map[string]struct {
		path, body string
		want       int
	}{
		"the longest owner":        {allocate, `{"gpu_count":1,"owner":"` + owner + `"}`, 200},
		"too long an owner":        {allocate, `{"gpu_count":1,"owner":"` + owner + `o"}`, 400},
		"an owner of two lines":    {allocate, `{"gpu_count":1,"owner":"a\nb"}`, 400},
		"a reservation's ID":       {setup, `{"gpu_count":1,"reservation_id":"` + strings.Repeat("r", 64) + `"}`, 200},
		"too long an ID":           {setup, `{"gpu_count":1,"reservation_id":"` + strings.Repeat("r", 65) + `"}`, 400},
		"an ID with a quote":       {setup, `{"gpu_count":1,"reservation_id":"\""}`, 400},
		"the most nodes":           {setup, `{"request":"8G","nodes":1000,"distributed_training":true}`, 200},
		"too many nodes":           {setup, `{"request":"8G","nodes":1001,"distributed_training":true}`, 400},
		"several nodes of nothing": {setup, `{"request":"8G","nodes":2}`, 400},
		"one node":                 {setup, `{"request":"8G","nodes":1}`, 200},
		"the smallest fraction":    {setup, `{"gpu_count":1,"gpu_memory_fraction":0.001}`, 200},
		"less than that":           {setup, `{"gpu_count":1,"gpu_memory_fraction":0.0001}`, 400},
		"all of the memory":        {setup, `{"gpu_count":1,"gpu_memory_fraction":1}`, 200},
		"more than that":           {setup, `{"gpu_count":1,"gpu_memory_fraction":1.001}`, 400},
		"GPUs that nodes divide":   {setup, `{"gpu_count":4,"nodes":2,"distributed_training":true}`, 200},
		"GPUs that they do not":    {setup, `{"gpu_count":3,"nodes":2,"distributed_training":true}`, 400},
		"the request and a count":  {allocate, `{"request":"1","gpu_count":1}`, 400},
		"the request and a type":   {allocate, `{"request":"1","gpu_type":"V100"}`, 400},
		"the request and a size":   {allocate, `{"request":"1","memory_gb":16}`, 400},
		"the request alone":        {allocate, `{"request":"1"}`, 200},
		"any size":                 {allocate, `{"gpu_count":1,"memory_gb":0}`, 200},
		"a size below none":        {allocate, `{"gpu_count":1,"memory_gb":-0.1}`, 400},
		"no card's size":           {allocate, fmt.Sprintf(`{"gpu_count":1,"memory_gb":%d}`, maxMemoryGB), 400},
		"the usual time":           {allocate, `{"gpu_count":1,"ttl_seconds":0}`, 200},
		"the longest time":         {allocate, `{"gpu_count":1,"ttl_seconds":86400}`, 200},
		"a time too long":          {allocate, `{"gpu_count":1,"ttl_seconds":86401}`, 400},
		"a time that is over":      {allocate, `{"gpu_count":1,"ttl_seconds":-1}`, 400},
		"nothing":                  {allocate, `{}`, 400},
	} {
		t.Run(name, func(t *testing.T) {
			got := newBench(t, nil).do("POST", test.path, test.body)
			if got.Code != test.want {
				t.Errorf("%d %s, want %d", got.Code, got.Body, test.want)
			}
		})
	}
}

// TestANamelessReservationIsTheDefaultNamespaces, whose token is asked for.
func TestANamelessReservationIsTheDefaultNamespaces(t *testing.T) {
	for path, refused := range map[string]int{"/api/v1/gpu/allocate": 403, "/api/v1/gpu/validate": 403} {
		b := newBench(t, func(c *Config) { c.Gate = gate{readers: map[string]string{"d": "default", "o": "other"}} })
		if got := b.do("POST", path, `{"gpu_count":1}`, "X-Nomad-Token", "d"); got.Code != 200 {
			t.Errorf("%s: %d %s", path, got.Code, got.Body)
		}
		if got := b.do("POST", path, `{"gpu_count":1}`, "X-Nomad-Token", "o"); got.Code != refused {
			t.Errorf("%s with another namespace's token: %d", path, got.Code)
		}
		for _, w := range b.keeper.Wants {
			if w.Namespace != "default" {
				t.Errorf("%s asks for namespace %q", path, w.Namespace)
			}
		}
	}
}

// TestTheSmallestGPUThatWillDo: memory_gb is a nominal size, and what the hardware
// reports is less.
func TestTheSmallestGPUThatWillDo(t *testing.T) {
	a := &API{Config{ModelGB: map[string]float64{"T4": 16, "V100": 32}}}
	c := &view.Cluster{Nodes: []view.Node{{GPUs: []view.GPU{
		{Type: "V100", Model: "Tesla V100-SXM2-32GB", MemoryMiB: 32510}, {Type: "V100", Model: "Tesla V100-SXM2-32GB", MemoryMiB: 32500}, {Type: "T4", Model: "Tesla T4", MemoryMiB: 15360},
	}}}}
	for asked, want := range map[float64]int64{0: 0, 16: 15360, 32: 32500} {
		if got := a.smallest(c, gpu.Request{}, asked); got != want {
			t.Errorf("%v GB is a GPU of %d MiB, want %d", asked, got, want)
		}
	}
	if got := a.smallest(c, gpu.Request{}, 80); got <= 32510 {
		t.Errorf("80 GB is a GPU of %d MiB, which one of 32 GB has", got)
	}
}

func TestAnAPINeedsAllItsParts(t *testing.T) {
	for name, drop := range map[string]func(*Config){
		"views": func(c *Config) { c.Views = nil }, "a keeper": func(c *Config) { c.Keeper = nil },
		"a gate": func(c *Config) { c.Gate = nil }, "a logger": func(c *Config) { c.Logger = nil },
	} {
		var whole Config
		newBench(t, func(c *Config) { whole = *c })
		drop(&whole)
		if _, err := New(whole); err == nil {
			t.Errorf("one without %s was made", name)
		}
	}
}

func TestWhatCannotBeEncodedIsAnError(t *testing.T) {
	w := httptest.NewRecorder()
	answer(w, 200, map[string]any{"f": func() {}})
	if w.Code != 500 || json.Valid(w.Body.Bytes()) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestParametersThatMeanNothingAreRefused by every operation that has an address of its
// own; Nomad's own are let through.
func TestParametersThatMeanNothingAreRefused(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Books = &shelf{} })
	for _, path := range []string{"status", "nodes", "health", "monitoring", "idle", "cluster", "reservations", "ledger", "ledger/advice"} {
		path = "/api/v1/gpu/" + path
		if got := b.do("GET", path+"?color=red", ""); got.Code != 400 {
			t.Errorf("%s takes a parameter it does not have: %d %s", path, got.Code, got.Body)
		}
		with, without := b.do("GET", path+"?region=global&namespace=default", ""), b.do("GET", path, "")
		if with.Code != without.Code {
			t.Errorf("%s with Nomad's own parameters: %d %s, without %d", path, with.Code, with.Body, without.Code)
		}
	}
}

// What is free of a GPU: of a divided one the part that is not held, of a whole one all or
// nothing, and of one whose instances are handed out nothing of itself.
func TestWhatIsFreeOfAGPU(t *testing.T) {
	four := make([]view.Instance, 4)
	for name, test := range map[string]struct {
		g       view.GPU
		memory  gb
		compute float64
	}{
		"shared, one of four held": {view.GPU{Mode: "shared", MemoryMiB: 16 << 10, Instances: four, HeldInstances: 1}, 12, 0.75},
		"shared, all held":         {view.GPU{Mode: "shared", MemoryMiB: 16 << 10, Instances: four, HeldInstances: 4}, 0, 0},
		"slices, one of four held": {view.GPU{Mode: "slice", MemoryMiB: 5 << 10, SliceMemoryMiB: 1024, Instances: four, HeldInstances: 1, HeldMilli: 250}, 3, 0.75},
		"whole, idle":              {view.GPU{Mode: "whole", MemoryMiB: 16 << 10, Instances: four[:1]}, 16, 1},
		"whole, held":              {view.GPU{Mode: "whole", MemoryMiB: 16 << 10, Instances: four[:1], HeldInstances: 1}, 0, 0},
		"divided into instances":   {view.GPU{Mode: "mig", MemoryMiB: 16 << 10}, 0, 0},
		"more held than it has":    {view.GPU{Mode: "slice", MemoryMiB: 1024, HeldMemoryMiB: 2048}, 0, 1},
	} {
		if memory, compute := freeOf(&test.g); memory != test.memory || compute != test.compute {
			t.Errorf("%s: %v GB and %v are free, want %v and %v", name, memory, compute, test.memory, test.compute)
		}
	}
}

// Answers say what they are, so that no browser guesses.
func TestAnswersSayWhatTheyAre(t *testing.T) {
	b := newBench(t, nil)
	for _, path := range []string{"openapi.json", "gpu/cluster", "gpu/status"} {
		if got := b.do("GET", "/api/v1/"+path, "").Header(); got.Get("Content-Type") != "application/json" || got.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, got)
		}
	}
}
