// SPDX-License-Identifier: MPL-2.0

package record

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Arrived is how many tasks of one kind jobs have asked for: later ones count more.
type Arrived struct {
	GPUs      int      `json:"gpus,omitempty"`
	Whole     bool     `json:"whole,omitempty"`
	Milli     int64    `json:"milli,omitempty"`      // share of each GPU
	GPUMiB    int64    `json:"gpu_mib,omitempty"`    // memory of each GPU
	CPUMHz    int64    `json:"cpu_mhz,omitempty"`    // of the host
	MemoryMiB int64    `json:"memory_mib,omitempty"` // of the host
	Models    []string `json:"models,omitempty"`
	Tasks     int      `json:"tasks"`
}

// ArrivedOf is a task of a request.
func ArrivedOf(r *place.Request) Arrived {
	return Arrived{r.GPUs, r.Whole, r.ShareMilli, r.MemoryMiBPerGPU, r.CPUMHz, r.MemoryMiB, r.Models, 1}
}

// Same reports whether two ask for the same.
func (a *Arrived) Same(b *Arrived) bool {
	return a.GPUs == b.GPUs && a.Whole == b.Whole && a.Milli == b.Milli && a.GPUMiB == b.GPUMiB && a.CPUMHz == b.CPUMHz && a.MemoryMiB == b.MemoryMiB && slices.Equal(a.Models, b.Models)
}

// Request is what the tasks asked for.
func (a *Arrived) Request() place.Request {
	return place.Request{GPUs: a.GPUs, Whole: a.Whole, ShareMilli: a.Milli, MemoryMiBPerGPU: a.GPUMiB, CPUMHz: a.CPUMHz, MemoryMiB: a.MemoryMiB, Models: a.Models}
}
