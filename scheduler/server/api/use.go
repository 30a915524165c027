// SPDX-License-Identifier: MPL-2.0

package api

import (
	"math"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// use sums the use of GPUs. A physical GPU counts once: its MIG instances count
// for their part of it.
type use struct {
	compute, memory, weight float64
}

// add counts a device. What was not measured counts as used as far as it is
// held: a reservation is the best that is known of it.
func (u *use) add(g *view.GPU, weight float64) {
	compute, memory := g.HeldMilli, g.HeldMemoryMiB
	if g.Measured.Milli >= 0 {
		compute = g.Measured.Milli
	}
	if g.Measured.MemoryMiB >= 0 {
		memory = g.Measured.MemoryMiB
	}
	u.compute += weight * ratio(compute, gpu.MilliPerGPU)
	u.memory += weight * ratio(memory, g.MemoryMiB)
	u.weight += weight
}

func (u use) utilization() Utilization {
	if u.weight == 0 {
		return Utilization{}
	}
	return Utilization{GPU: round(u.compute / u.weight), Memory: round(u.memory / u.weight)}
}

// usage sums the use of devices of some nodes.
func usage(nodes []view.Node, want func(*view.GPU) bool) use {
	var u use
	for i := range nodes {
		gpus := nodes[i].GPUs
		siblings := map[string]float64{}
		for k := range gpus {
			siblings[gpus[k].ParentUUID]++
		}
		for k := range gpus {
			g := &gpus[k]
			switch {
			case !want(g):
			case g.ParentUUID != "":
				u.add(g, 1/siblings[g.ParentUUID])
			case siblings[g.UUID] == 0:
				u.add(g, 1)
			}
		}
	}
	return u
}

func everyGPU(*view.GPU) bool { return true }

// ratio is a part of a whole, 0 to 1.
func ratio(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return min(1, max(0, float64(part)/float64(whole)))
}

// round keeps three decimals.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// nominalGB is the size under which a GPU is known: the operator's figure for
// its type where the hardware is within a tenth of it, else what it is sold with. A MIG
// instance has what it reports.
func (a *API) nominalGB(g *view.GPU) gb {
	reported := float64(g.MemoryMiB) / 1024
	if known := a.ModelGB[g.Type]; known > 0 && g.Profile == "" && math.Abs(reported-known) <= known/10 {
		return gb(known)
	}
	if sold := gpu.NominalMiB(g.MemoryMiB); g.Profile == "" && sold-g.MemoryMiB <= sold/10 {
		return gb(sold >> 10)
	}
	return gb(math.Round(reported*10) / 10)
}

// reserved are the UUIDs of GPUs that are kept free for a job that has not come.
func reserved(c *view.Cluster) map[string]bool {
	held := map[string]bool{}
	for _, h := range c.Holds {
		for _, uuid := range h.GPUs {
			held[uuid] = held[uuid] || h.ClaimedBy == ""
		}
	}
	return held
}

// available reports whether the GPU is free for one task alone. One that is
// divided into MIG instances is not.
func available(n *view.Node, g *view.GPU) bool {
	return n.Ready() && g.Healthy && !g.Cordoned && g.HeldInstances == 0 && g.Idle() && g.ParentUUID == "" && g.Mode != "mig"
}
