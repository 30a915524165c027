// SPDX-License-Identifier: MPL-2.0

// Package hardware describes what a backend sees of a machine's accelerators,
// in words that hold for every vendor: GPUs, their parts, their processes,
// their readings and their events.
//
// A backend (device/nvidia, or one for another vendor) fills these structures;
// the rest of the plugin decides on them and never talks to a driver. They are
// plain data, copied freely, and say nothing of Nomad.
package hardware

import "errors"

// Machine is one survey: everything that could be seen at a moment.
type Machine struct {
	// Drivers are those that were asked, by vendor.
	Drivers map[string]Driver
	// GPUs are the devices in order of enumeration, which may change between
	// boots; a GPU that answers nothing but its position is in its driver's Unknown.
	GPUs []GPU
}

// Driver is a vendor's driver, and how much of its devices it could show.
type Driver struct {
	// Version is the driver's, Platform that of the newest programming platform that
	// it serves, CUDA for NVIDIA ("13.0"); both are empty where it does not tell.
	Version  string
	Platform string
	// Absent is why nothing could be seen of the vendor's devices; nil when they
	// could be. Err is the error behind it.
	Absent *Problem
	Err    error
	// Outdated means that only a new process can be served.
	Outdated bool
	// Unknown names devices that are there but do not tell who they are.
	Unknown []Problem
}

// ErrAbsent means that a vendor's driver is not there: a machine without its
// devices, or before the driver is loaded.
var ErrAbsent = errors.New("there is no driver")

// Absence is the ErrAbsent of one vendor: it names the missing part.
type Absence string

func (a Absence) Error() string { return string(a) }

func (a Absence) Is(target error) bool { return target == ErrAbsent }

// GPU is a physical device.
type GPU struct {
	UUID   string
	Vendor string
	// Type is Nomad's device type: "gpu", or "npu" for Ascend.
	Type string
	// Index is the position in the present enumeration, Minor the number of the
	// device node; both may change.
	Index, Minor int
	// Position is the place among the vendor's devices by which programs count them,
	// where that is not Index: AMD's partitions have each their own.
	Position int `json:",omitempty"`
	// PCIBusID is spelled as sysfs does: "0000:3b:00.0".
	PCIBusID string
	// Model is the vendor's full name: "NVIDIA H100 80GB HBM3".
	Model     string
	MemoryMiB int64
	// ReservedMiB is what no program can have of it.
	ReservedMiB int64 `json:",omitempty"`
	// Unsized is true where the driver does not tell how much memory there is.
	Unsized bool `json:",omitempty"`
	// Unified is true where the memory is the host's.
	Unified bool `json:",omitempty"`
	Traits
	// Partitioned says whether the device is used in parts now; Partitions are they.
	Partitioned bool        `json:"MIG"`
	Partitions  []Partition `json:"Instances"`
	// PartitionProblem is why not all of that could be seen; nil when it could.
	PartitionProblem *Problem `json:"MIGProblem,omitempty"`
	// Problems are the device's present faults; none is well.
	Problems []Problem
}

// Known reports whether the device told enough to be offered. One that is lost
// in the middle of a survey has a name and no memory: were that believed, its
// slices would be withdrawn, and Nomad would forget who holds them.
func (g GPU) Known() bool { return g.Model != "" && (g.MemoryMiB > 0 || g.Unsized) }

// Traits are properties of a device that do not change while the driver runs.
// Zero means not known.
type Traits struct {
	BAR1MiB           int64
	PowerLimitWatts   int64
	CoreClockMHz      int64
	MemoryClockMHz    int64
	PCIBandwidthMBps  int64
	DisplayState      string
	PersistenceMode   string
	ComputeCapability string
	// NUMANode is -1 where the machine has none or does not tell.
	NUMANode int
	// Links are the active ones to other devices, by their other ends.
	Links Links `json:"NVLinks"`
	// Exclusive means that the compute mode lets only one program in.
	Exclusive bool
	// MemoryLimits means that the driver can hold control groups to an amount of memory.
	MemoryLimits bool `json:",omitempty"`
	// Virtual marks a vGPU seen from inside a guest.
	Virtual bool
	// Tiles is how many parts the processor has that programs can name; 0 is not known.
	Tiles int `json:",omitempty"`
	// Functions is how many virtual functions an operator could make of it; 0 is none.
	Functions int `json:",omitempty"`
	// AICores is how many cores for matrices Ascend's processor has.
	AICores int `json:",omitempty"`
	// Target is AMD's name of the instruction set: "gfx942".
	Target string `json:",omitempty"`
	// Dmem is the region by which control groups limit the memory; empty where the
	// kernel cannot.
	Dmem string `json:",omitempty"`
}

// Links counts a GPU's active links to others, of the vendor's own kind.
type Links struct {
	// Kind is their technology: LinkXGMI, LinkHCCS, or empty for NVLink.
	Kind string `json:",omitempty"`
	// Peers are those that lead to another GPU, by its PCI address.
	Peers map[string]int `json:",omitempty"`
	// Switches are those that lead to switches, which join all their GPUs: all of the
	// machine, or those with the same Fabric.
	Switches int    `json:",omitempty"`
	Fabric   string `json:",omitempty"`
}

// The kinds of links between devices, beside NVLink.
const (
	LinkXGMI = "xgmi"
	LinkHCCS = "hccs"
)

// Total is how many links are active.
func (l Links) Total() int {
	sum := l.Switches
	for _, links := range l.Peers {
		sum += links
	}
	return sum
}

// Partition is a part of a GPU that is isolated by hardware: a MIG instance, an
// XCP of AMD, a virtual function, a vNPU.
type Partition struct {
	UUID string
	// Kind is the word for it in device groups; empty for MIG.
	Kind string `json:",omitempty"`
	// Profile is the vendor's name of its size or mode: "1g.10gb", "cpx-nps4".
	Profile string
	// Name is what the driver calls it: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
	Name      string
	MemoryMiB int64
	// GI is its number on the GPU. A MIG instance has two: that of its GPU instance,
	// and CI, that of its compute instance.
	GI, CI int
	// Position is its place among the devices that programs count.
	Position int `json:",omitempty"`
	// Problems are the faults of this partition alone. One that cannot be
	// read has its UUID and a problem, and nothing else.
	Problems []Problem `json:",omitempty"`
}

// Known reports whether the partition told enough to be offered.
func (p Partition) Known() bool { return p.Profile != "" }

// The codes of a GPU that is gone: first the driver knows it and cannot reach it, then
// it is not found any more.
const (
	CodeLost    = "gpu-lost"
	CodeMissing = "gpu-missing"
)

// Problem is one thing that is wrong with a device.
type Problem struct {
	// Code is short and stable: "gpu-lost", "nvml-timeout", "ecc-remap-pending".
	Code string
	// Message names the fault, in words that do not change while it lasts.
	Message string
	// Action says what to do about it.
	Action string
	// Fatal problems end what runs on the device.
	Fatal bool `json:",omitempty"`
	// Tentative problems may be a slow machine's: they count once they have lasted.
	Tentative bool `json:",omitempty"`
}

// HangTimeouts is after how many timeouts a call that is still out hangs: a machine with
// twenty busy processes per core needs more than one, and is well.
const HangTimeouts = 6
