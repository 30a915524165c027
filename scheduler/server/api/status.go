// SPDX-License-Identifier: MPL-2.0

package api

import (
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Utilization is how much of the GPUs is used, each 0 to 1.
type Utilization struct {
	GPU    float64 `json:"gpu_utilization"`
	Memory float64 `json:"gpu_memory_usage"`
}

// Status is the answer of /status.
type Status struct {
	Utilization    Utilization  `json:"utilization"`
	AvailableNodes []NodeStatus `json:"available_nodes"`
	TotalNodes     int          `json:"total_nodes"`
	Timestamp      stamp        `json:"timestamp"`
}

// NodeStatus is a node's GPUs of one type, with the fields that callers were promised
// and no others.
type NodeStatus struct {
	NodeName string `json:"node_name"`
	GPUType  string `json:"gpu_type"`
	// AvailableGPUs have nothing on them and take new work.
	AvailableGPUs int     `json:"available_gpus"`
	MemoryPerGPU  gb      `json:"memory_per_gpu"`
	Utilization   float64 `json:"utilization"`
}

// NodeList is the answer of /nodes.
type NodeList struct {
	Nodes     []NodeDetail `json:"nodes"`
	Total     int          `json:"total"`
	Timestamp stamp        `json:"timestamp"`
}

// NodeDetail is a node's GPUs of one type, the busy ones too.
type NodeDetail struct {
	NodeStatus
	NodeID      string `json:"node_id"`
	TotalGPUs   int    `json:"total_gpus"`
	HealthyGPUs int    `json:"healthy_gpus"`
	// Ready is whether Nomad starts new work there.
	Ready bool `json:"ready"`
	// FreeMemoryGB and FreeCompute are what new work could still get of all GPUs,
	// of those in use too; compute in GPUs.
	FreeMemoryGB gb      `json:"free_memory_gb"`
	FreeCompute  float64 `json:"free_compute"`
	// GPUs are each of them, as far as new work could get it.
	GPUs []FreeGPU `json:"gpus"`
}

// FreeGPU is what new work could still get of one GPU.
type FreeGPU struct {
	UUID         string  `json:"uuid"`
	Mode         string  `json:"mode"`
	FreeMemoryGB gb      `json:"free_memory_gb"`
	FreeCompute  float64 `json:"free_compute"` // 0 to 1
}

func (a *API) status(w http.ResponseWriter, r *http.Request) error {
	if err := onlyQuery(r); err != nil {
		return err
	}
	c, err := a.picture(r)
	if err != nil {
		return err
	}
	s := Status{Utilization: usage(c.Nodes, everyGPU).utilization(), AvailableNodes: []NodeStatus{}, Timestamp: stamp(c.At)}
	held := reserved(c)
	for i := range c.Nodes {
		if len(c.Nodes[i].GPUs) > 0 {
			s.TotalNodes++
		}
		for _, d := range a.details(&c.Nodes[i], filter{}, held) {
			if d.AvailableGPUs > 0 || d.FreeMemoryGB > 0 && d.FreeCompute > 0 {
				s.AvailableNodes = append(s.AvailableNodes, d.NodeStatus)
			}
		}
	}
	answer(w, http.StatusOK, s)
	return nil
}

func (a *API) nodes(w http.ResponseWriter, r *http.Request) error {
	f, err := parseFilter(r)
	if err != nil {
		return err
	}
	c, err := a.picture(r)
	if err != nil {
		return err
	}
	list := NodeList{Nodes: []NodeDetail{}, Timestamp: stamp(c.At)}
	held := reserved(c)
	for i := range c.Nodes {
		list.Nodes = append(list.Nodes, a.details(&c.Nodes[i], f, held)...)
	}
	list.Total = len(list.Nodes)
	answer(w, http.StatusOK, list)
	return nil
}

// filter selects GPUs by type and size.
type filter struct {
	types    []string // any of; none: all
	not      []string // none of
	memoryGB float64
}

func parseFilter(r *http.Request) (filter, error) {
	if err := onlyQuery(r, "gpu_type", "min_memory_gb"); err != nil {
		return filter{}, err
	}
	var f filter
	if name := r.URL.Query().Get("gpu_type"); name != "" {
		f.types = []string{name}
	}
	text := r.URL.Query().Get("min_memory_gb")
	if text == "" {
		return f, nil
	}
	size, err := strconv.ParseFloat(text, 64)
	if err != nil || !(size >= 0 && size < maxMemoryGB) {
		return filter{}, problemf(http.StatusBadRequest, "min_memory_gb %q is not a number from 0 to %d", text, maxMemoryGB)
	}
	f.memoryGB = size
	return f, nil
}

// onlyQuery refuses parameters that mean nothing here. Nomad's own, which its
// clients send everywhere, are let through.
func onlyQuery(r *http.Request, valid ...string) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return problemf(http.StatusBadRequest, "malformed query: %v", err)
	}
	for name := range query {
		switch {
		case contains(valid, name), name == "region", name == "namespace":
		case len(valid) == 0:
			return problemf(http.StatusBadRequest, "unknown parameter %q; this operation has none", name)
		default:
			return problemf(http.StatusBadRequest, "unknown parameter %q; valid are %s", name, strings.Join(valid, ", "))
		}
	}
	return nil
}

func (f filter) matches(a *API, g *view.GPU) bool {
	return (len(f.types) == 0 || slices.ContainsFunc(f.types, func(name string) bool { return named(g, name) })) &&
		!slices.ContainsFunc(f.not, func(name string) bool { return named(g, name) }) && float64(a.nominalGB(g)) >= f.memoryGB
}

// named reports whether a GPU goes by a name that people write: its type, its
// full name, or that with dashes for blanks.
func named(g *view.GPU, name string) bool {
	return strings.EqualFold(name, g.Type) || strings.EqualFold(name, g.Model) ||
		strings.EqualFold(name, strings.ReplaceAll(g.Model, " ", "-"))
}

// freeOf is the memory and the compute of a GPU that no task holds. A whole GPU is
// free or not; of a sliced one the memory is in slices.
func freeOf(g *view.GPU) (memory gb, compute float64) {
	if g.Mode == "mig" { // its instances are handed out
		return 0, 0
	}
	if g.Mode == string(gpu.ModeWhole) {
		if g.HeldInstances > 0 || !g.Idle() {
			return 0, 0
		}
		return gb(roundTo(float64(g.MemoryMiB) / 1024)), 1
	}
	mib := g.MemoryMiB - g.HeldMemoryMiB
	if g.SliceMemoryMiB > 0 {
		mib = int64(len(g.Instances)-g.HeldInstances) * g.SliceMemoryMiB
	}
	if g.Mode == string(gpu.ModeShared) && len(g.Instances) > 0 {
		return gb(roundTo(float64(g.MemoryMiB) / 1024 * float64(len(g.Instances)-g.HeldInstances) / float64(len(g.Instances)))), round(ratio(int64(len(g.Instances)-g.HeldInstances), int64(len(g.Instances))))
	}
	return gb(roundTo(float64(max(0, mib)) / 1024)), round(1 - ratio(g.HeldMilli, gpu.MilliPerGPU))
}

// roundTo keeps one decimal, as sizes are written.
func roundTo(v float64) float64 { return math.Round(v*10) / 10 }

// details groups a node's GPUs by type and size, in the node's order. Held GPUs
// are reserved.
func (a *API) details(n *view.Node, f filter, held map[string]bool) []NodeDetail {
	type key struct {
		gpuType string
		size    gb
	}
	var list []NodeDetail
	at := map[key]int{}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if g.ParentUUID != "" || !f.matches(a, g) {
			continue
		}
		k := key{g.Type, a.nominalGB(g)}
		if _, ok := at[k]; !ok {
			at[k] = len(list)
			same := func(o *view.GPU) bool { return o.Type == k.gpuType && (o.ParentUUID != "" || a.nominalGB(o) == k.size) }
			list = append(list, NodeDetail{
				NodeStatus: NodeStatus{
					NodeName: n.Name, GPUType: k.gpuType, MemoryPerGPU: k.size,
					Utilization: usage([]view.Node{*n}, same).utilization().GPU,
				},
				NodeID: n.ID, Ready: n.Ready(),
			})
		}
		d := &list[at[k]]
		d.TotalGPUs++
		if g.Healthy {
			d.HealthyGPUs++
		}
		if available(n, g) && !held[g.UUID] {
			d.AvailableGPUs++
		}
		free := FreeGPU{UUID: g.UUID, Mode: g.Mode}
		if takes := n.Ready() && g.Healthy && !g.Cordoned && !held[g.UUID]; takes {
			free.FreeMemoryGB, free.FreeCompute = freeOf(g)
		}
		d.GPUs = append(d.GPUs, free)
		d.FreeMemoryGB, d.FreeCompute = gb(roundTo(float64(d.FreeMemoryGB+free.FreeMemoryGB))), round(d.FreeCompute+free.FreeCompute)
	}
	return list
}
