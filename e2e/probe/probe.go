// SPDX-License-Identifier: MPL-2.0

// Package probe is what the program gpuprobe tells, between it and who reads it.
package probe

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// NVIDIAMajor is the character device number that NVIDIA's GPUs have had on every
// Linux; minors below ControlMinor are GPUs, that one is the control node.
const (
	NVIDIAMajor  = 195
	ControlMinor = 255
)

// DRMMajor is the number of the nodes in /dev/dri; render nodes count from
// FirstRender.
const (
	DRMMajor    = 226
	FirstRender = 128
)

// The numbers of the nodes of Ascend's devices and vNPUs on simulated machines; those of
// devices are below the managers'.
const (
	NPUMajor     = 242
	VNPUMajor    = 243
	FirstManager = 200
)

// Refused is what opening a node answers that is not the task's.
const Refused = "EPERM"

// Report is what the program finds.
type Report struct {
	// Env holds the variables that steer GPU programs.
	Env map[string]string `json:"env"`
	// Nodes holds, for every character device below /dev that is not one of the
	// usual ones, its numbers and what opening it answers.
	Nodes []Node `json:"nodes"`
	// Forged holds, for GPU minors 0 to 15, what opening a node answers that
	// the program made for itself: Refused is the wall around other tasks' GPUs.
	Forged map[string]string `json:"forged"`
	// ForgedDRM is the same for the first 32 render nodes.
	ForgedDRM map[string]string `json:"forged_drm"`
	// ForgedNPU and ForgedVNPU are the same for the first 16 of Ascend's devices, and for
	// vNPUs from 100 on.
	ForgedNPU  map[string]string `json:"forged_npu"`
	ForgedVNPU map[string]string `json:"forged_vnpu"`
	// MemoryLimit is the GPU memory limit that CUDA would obey; empty is none.
	MemoryLimit string `json:"memory_limit"`
}

// Node is one device node. Open is "ok" or the name of an error.
type Node struct {
	Path  string `json:"path"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	Open  string `json:"open"`
}

// OpensGPU reports whether the node is a GPU that the program may open.
func (n Node) OpensGPU() bool {
	return n.Major == NVIDIAMajor && n.Minor < ControlMinor && n.Open != Refused
}

// OpensOther reports whether the node is a device of another vendor that the program may
// open: a render node, one of Ascend's devices, or a vNPU.
func (n Node) OpensOther() bool {
	device := n.Major == DRMMajor && n.Minor >= FirstRender || n.Major == NPUMajor && n.Minor < FirstManager || n.Major == VNPUMajor
	return device && n.Open != Refused
}

// Opens lists the minors of the GPUs that the program can open, through the nodes that
// it was given and through those that it forged.
func (r Report) Opens() []int {
	minors := map[int]bool{}
	for _, node := range r.Nodes {
		if node.OpensGPU() {
			minors[int(node.Minor)] = true
		}
	}
	for minor, answer := range r.Forged {
		if n, err := strconv.Atoi(minor); err != nil || answer != Refused {
			minors[n] = true
		}
	}
	return slices.Sorted(maps.Keys(minors))
}

// Renders lists the minors of the render nodes that the program can open, through the
// nodes that it was given and through those that it forged.
func (r Report) Renders() []int {
	return r.opened(DRMMajor, FirstRender, 1<<20, r.ForgedDRM)
}

// NPUs lists the minors of Ascend's devices that the program can open, VNPUs those of
// vNPUs.
func (r Report) NPUs() []int { return r.opened(NPUMajor, 0, FirstManager, r.ForgedNPU) }

// VNPUs is NPUs of vNPUs.
func (r Report) VNPUs() []int { return r.opened(VNPUMajor, 0, 1<<20, r.ForgedVNPU) }

// opened lists the minors of a major, from the first up to an end, of the nodes that can be
// opened, and of those that were forged and could be.
func (r Report) opened(major, first, end uint32, forged map[string]string) []int {
	minors := map[int]bool{}
	for _, node := range r.Nodes {
		if node.Major == major && node.Minor >= first && node.Minor < end && node.Open != Refused {
			minors[int(node.Minor)] = true
		}
	}
	for minor, answer := range forged {
		if n, err := strconv.Atoi(minor); err != nil || answer != Refused {
			minors[n] = true
		}
	}
	return slices.Sorted(maps.Keys(minors))
}

// Parse reads the line that the program prints.
func Parse(line []byte) (Report, error) {
	var r Report
	if err := json.Unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("decode report %q: %w", line, err)
	}
	return r, nil
}
