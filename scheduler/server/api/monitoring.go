// SPDX-License-Identifier: MPL-2.0

package api

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Health is the answer of /health.
type Health struct {
	// Status is healthy, degraded (some GPU takes no work, or the ledger cannot be
	// written) or unhealthy (none does).
	Status string `json:"status"`
	// A GPU that is divided into MIG instances counts once, and is healthy if all of
	// them are.
	TotalGPUs   int       `json:"total_gpus"`
	HealthyGPUs int       `json:"healthy_gpus"`
	Problems    []Problem `json:"problems"`
	Timestamp   stamp     `json:"timestamp"`
}

// Problem is one GPU or node that takes no new work, or the ledger.
type Problem struct {
	NodeName string `json:"node_name"`      // empty when it is the ledger
	UUID     string `json:"uuid,omitempty"` // empty when it is the node
	GPUType  string `json:"gpu_type,omitempty"`
	// Reason names the fault and the remedy.
	Reason string `json:"reason"`
}

// Words of Health.Status.
const (
	healthy   = "healthy"
	degraded  = "degraded"
	unhealthy = "unhealthy"
)

// Monitoring is the answer of /monitoring.
type Monitoring struct {
	Utilization Utilization  `json:"utilization"`
	GPUs        []GPUReading `json:"gpus"`
	Pending     int          `json:"pending"`
	Timestamp   stamp        `json:"timestamp"`
}

// GPUReading is what one GPU or MIG instance does now. A reading that was not
// made is null.
type GPUReading struct {
	NodeName     string   `json:"node_name"`
	UUID         string   `json:"uuid"`
	GPUType      string   `json:"gpu_type"`
	Profile      string   `json:"mig_profile,omitempty"`
	Mode         string   `json:"mode"`
	Healthy      bool     `json:"healthy"`
	Utilization  *float64 `json:"utilization"`
	MemoryUsage  *float64 `json:"memory_usage"`
	HeldCompute  float64  `json:"held_compute"`
	HeldMemory   float64  `json:"held_memory"`
	TemperatureC *int64   `json:"temperature_c"`
	PowerW       *int64   `json:"power_w"`
	Tasks        int      `json:"tasks"`
}

func (a *API) health(w http.ResponseWriter, r *http.Request) error {
	if err := onlyQuery(r); err != nil {
		return err
	}
	c, err := a.picture(r)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, healthOf(c))
	return nil
}

func healthOf(c *view.Cluster) Health {
	h := Health{Problems: []Problem{}, Timestamp: stamp(c.At)}
	usable, well := 0, map[string]bool{} // of physical GPUs: MIG instances are parts of one
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if reason := nodeProblem(n); reason != "" && len(n.GPUs) > 0 {
			h.Problems = append(h.Problems, Problem{NodeName: n.Name, Reason: reason})
		}
		for k := range n.GPUs {
			g := &n.GPUs[k]
			physical := cmp.Or(g.ParentUUID, g.UUID)
			before, known := well[physical]
			well[physical] = g.Healthy && (before || !known)
			if reason := gpuProblem(g); reason != "" {
				h.Problems = append(h.Problems, Problem{NodeName: n.Name, UUID: g.UUID, GPUType: g.Type, Reason: reason})
			} else if n.Ready() {
				usable++
			}
		}
	}
	for _, is := range well {
		h.TotalGPUs++
		if is {
			h.HealthyGPUs++
		}
	}
	if reason := ledgerProblem(c.Ledger); reason != "" {
		h.Problems = append(h.Problems, Problem{Reason: reason})
	}
	for _, reason := range c.Trouble {
		h.Problems = append(h.Problems, Problem{Reason: reason})
	}
	for _, queue := range c.BatchQueues {
		h.Problems = append(h.Problems, Problem{Reason: queue.Warning()})
	}
	switch {
	case usable == 0:
		h.Status = unhealthy
	case len(h.Problems) > 0:
		h.Status = degraded
	default:
		h.Status = healthy
	}
	return h
}

// ledgerProblem says that the ledger cannot be written; empty where it can.
func ledgerProblem(o *view.LedgerOutage) string {
	if o == nil {
		return ""
	}
	text := fmt.Sprintf("the ledger has not been written since %s, and decisions go on: %d records wait in memory", o.Since.UTC().Format(time.RFC3339), o.Waiting)
	if o.Dropped > 0 {
		text += fmt.Sprintf(", and %d were dropped", o.Dropped)
	}
	return text + "; see its disk or database, and the service's log"
}

// nodeProblem says why a node takes no new work; empty when it does.
func nodeProblem(n *view.Node) string {
	switch {
	case n.Status != "ready":
		return "the node is " + n.Status + "; see that its Nomad client runs and reaches the servers"
	case n.Draining:
		return "the node is being drained; nothing is to be done if that is meant"
	case !n.Eligible:
		return "the node is not eligible; run \"nomad node eligibility -enable " + n.ID + "\" when it may take work again"
	}
	return ""
}

func gpuProblem(g *view.GPU) string {
	switch {
	case !g.Healthy && g.Health != "":
		return g.Health
	case !g.Healthy:
		return "Nomad calls the GPU unhealthy without a reason; the device plugin's log on the node says more"
	case g.Cordoned:
		return "the GPU is cordoned: running tasks go on, new ones go elsewhere; uncordon it when it may take work again"
	}
	return ""
}

func (a *API) monitoring(w http.ResponseWriter, r *http.Request) error {
	if err := onlyQuery(r); err != nil {
		return err
	}
	c, err := a.picture(r)
	if err != nil {
		return err
	}
	m := Monitoring{Utilization: usage(c.Nodes, everyGPU).utilization(), GPUs: []GPUReading{}, Pending: len(c.Pending), Timestamp: stamp(c.At)}
	for i := range c.Nodes {
		for k := range c.Nodes[i].GPUs {
			m.GPUs = append(m.GPUs, reading(&c.Nodes[i], &c.Nodes[i].GPUs[k]))
		}
	}
	answer(w, http.StatusOK, m)
	return nil
}

func reading(n *view.Node, g *view.GPU) GPUReading {
	return GPUReading{
		NodeName: n.Name, UUID: g.UUID, GPUType: g.Type, Profile: g.Profile, Mode: g.Mode, Healthy: g.Healthy,
		Utilization:  measuredRatio(g.Measured.Milli, 1000),
		MemoryUsage:  measuredRatio(g.Measured.MemoryMiB, g.MemoryMiB),
		HeldCompute:  round(ratio(g.HeldMilli, 1000)),
		HeldMemory:   round(ratio(g.HeldMemoryMiB, g.MemoryMiB)),
		TemperatureC: measured(g.Measured.TemperatureC),
		PowerW:       measured(g.Measured.PowerW),
		Tasks:        len(g.Holders),
	}
}

func measured(v int64) *int64 {
	if v < 0 {
		return nil
	}
	return &v
}

func measuredRatio(part, whole int64) *float64 {
	if part < 0 || whole <= 0 {
		return nil
	}
	r := round(ratio(part, whole))
	return &r
}
