// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
)

// Unmeasured marks a utilization that has not been measured.
const Unmeasured = -1

// GPU is one physical device, or one MIG instance: a GPU in MIG mode is listed
// as its instances, each with a mode of its own.
type GPU struct {
	ID        string   // UUID, unique in the cluster
	Vendor    string   // "nvidia"
	Model     string   // NVML name, "NVIDIA A100-PCIE-40GB"
	Type      string   // short name, "A100"
	Mode      gpu.Mode // whole, slice or shared
	Sharing   gpu.Sharing
	Profile   string // of a MIG instance, "3g.20gb"; empty otherwise
	MemoryMiB int64  // as the driver reports it
	SliceMiB  int64  // memory of one slice; in mode slice
	Slices    int64  // number of slices, in mode slice
	Replicas  int64  // turns that may be held at once, in mode shared
	// SeatPriority is the highest that tasks may have which step aside for each other there.
	SeatPriority int
	NUMA         int // NUMA node, -1 when unknown
	// Device is the device group that the GPU belongs to; nil: it meets no
	// condition on one.
	Device    *constraint.Device
	Peers     []int // positions in Node.GPUs that NVLink reaches directly
	Unhealthy bool  // takes no new work
	Cordoned  bool  // takes no new work; running work stays

	MeasuredMilli     int64 // measured compute, 0..1000, or Unmeasured
	MeasuredMemoryMiB int64 // measured memory, or Unmeasured
	// SurplusMilli is the compute that is measured beyond the expected use of the tasks there
	// ([Take.Expected]), or nothing that counts.
	SurplusMilli int64
}

// Node is one Nomad client.
type Node struct {
	ID         string
	Name       string
	Datacenter string
	Pool       string
	CPUMHz     int64
	MemoryMiB  int64
	GPUs       []GPU
	Attributes map[string]string // what constraints may ask for
	Ineligible bool              // draining or disabled: no new work
}

// Validate reports the first thing that makes the node unusable for planning.
func (n *Node) Validate() error {
	if n.ID == "" {
		return fmt.Errorf("check node: no ID")
	}
	if n.CPUMHz < 0 || n.MemoryMiB < 0 {
		return fmt.Errorf("check node %q: negative CPU or memory", n.ID)
	}
	if len(n.GPUs) > MaxGPUs {
		return fmt.Errorf("check node %q: %d GPUs, at most %d are planned for", n.ID, len(n.GPUs), MaxGPUs)
	}
	seen := make(map[string]bool, len(n.GPUs))
	for i := range n.GPUs {
		if err := n.GPUs[i].validate(len(n.GPUs)); err != nil {
			return fmt.Errorf("check node %q: GPU %d: %w", n.ID, i, err)
		}
		if id := n.GPUs[i].ID; seen[id] {
			return fmt.Errorf("check node %q: GPU %q is listed twice", n.ID, id)
		}
		seen[n.GPUs[i].ID] = true
	}
	return nil
}

func (g *GPU) validate(onNode int) error {
	switch {
	case g.ID == "":
		return fmt.Errorf("no ID")
	case g.Mode != gpu.ModeWhole && g.Mode != gpu.ModeSlice && g.Mode != gpu.ModeShared:
		return fmt.Errorf("mode %q, want whole, slice or shared", g.Mode)
	case g.MemoryMiB < 0 || g.SliceMiB < 0 || g.Slices < 0 || g.Replicas < 0:
		return fmt.Errorf("negative memory, slices or replicas")
	case (g.Mode == gpu.ModeSlice) != (g.Slices > 0 && g.SliceMiB > 0):
		return fmt.Errorf("mode %s with %d slices of %d MiB", g.Mode, g.Slices, g.SliceMiB)
	case (g.Mode == gpu.ModeShared) != (g.Replicas > 0):
		return fmt.Errorf("mode %s with %d replicas", g.Mode, g.Replicas)
	case g.SurplusMilli < 0 || g.SurplusMilli > GPUMilli:
		return fmt.Errorf("%d milli are used beyond what is expected", g.SurplusMilli)
	case g.Slices > MaxSlices || g.Replicas > MaxSlices:
		return fmt.Errorf("more than %d slices or replicas", MaxSlices)
	}
	for _, p := range g.Peers {
		if p < 0 || p >= onNode {
			return fmt.Errorf("peer %d is not on the node", p)
		}
	}
	return nil
}

// HasSeats reports whether tasks step aside for each other on the GPU: each task with a seat
// can have all of it, the others are suspended meanwhile.
func (g *GPU) HasSeats() bool { return g.Sharing == gpu.SharingSuspend && g.Replicas > 0 }

// takesWork reports whether new work may start on the GPU.
func (g *GPU) takesWork() bool { return !g.Unhealthy && !g.Cordoned }
