// Package hardware describes what a backend sees of a machine's accelerators,
// in words that hold for every vendor: GPUs, their parts, their processes,
// their readings and their events.
//
// A backend (device/nvidia, or one for another vendor) fills these structures;
// the rest of the plugin decides on them and never talks to a driver. They are
// plain data, copied freely, and say nothing of Nomad.
package hardware

// Machine is one survey: everything that a backend could see at a moment.
type Machine struct {
	// DriverVersion is the vendor driver's, CUDAVersion that of the newest CUDA
	// it serves ("13.0"); both are empty where there is none.
	DriverVersion string
	CUDAVersion   string
	// GPUs are the devices in order of enumeration, which may change between
	// boots; a GPU that answers nothing but its position is in Unknown.
	GPUs []GPU
	// Unknown names devices that are there but do not tell who they are.
	Unknown []Problem
}

// GPU is a physical device.
type GPU struct {
	UUID   string
	Vendor string
	// Type is Nomad's device type: "gpu", or "npu" for Ascend.
	Type string
	// Index is the position in the present enumeration, Minor the number of the
	// device node; both may change.
	Index, Minor int
	// PCIBusID is spelled as sysfs does: "0000:3b:00.0".
	PCIBusID string
	// Model is the vendor's full name: "NVIDIA H100 80GB HBM3".
	Model     string
	MemoryMiB int64
	// ReservedMiB is what no program can have of it.
	ReservedMiB int64 `json:",omitempty"`
	// Unified is true where the memory is the host's.
	Unified bool `json:",omitempty"`
	Traits
	// MIG says whether the device is partitioned now; Instances are its parts.
	MIG       bool
	Instances []Instance
	// MIGProblem is why not all of that could be seen; nil when it could.
	MIGProblem *Problem `json:",omitempty"`
	// Problems are what is wrong with the device now; none is well.
	Problems []Problem
}

// Known reports whether the device told enough to be offered. One that is lost
// in the middle of a survey has a name and no memory: were that believed, its
// slices would be withdrawn, and Nomad would forget who holds them.
func (g GPU) Known() bool { return g.Model != "" && g.MemoryMiB > 0 }

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
	// NVLinks are the active ones, by what is at their other end.
	NVLinks NVLinks
	// Exclusive means that the compute mode lets only one program in.
	Exclusive bool
	// Virtual marks a vGPU seen from inside a guest.
	Virtual bool
}

// NVLinks counts a GPU's active links.
type NVLinks struct {
	// Peers are those that lead to another GPU, by its PCI address.
	Peers map[string]int `json:",omitempty"`
	// Switches are those that lead to NVSwitches, which join all their GPUs.
	Switches int `json:",omitempty"`
}

// Total is how many links are active.
func (n NVLinks) Total() int {
	sum := n.Switches
	for _, links := range n.Peers {
		sum += links
	}
	return sum
}

// Instance is a MIG instance: a part of a GPU that is isolated by hardware.
type Instance struct {
	UUID string
	// Profile is NVIDIA's name of its size: "1g.10gb".
	Profile string
	// Name is what NVML calls it: "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
	Name      string
	MemoryMiB int64
	// GI and CI are the numbers of its GPU instance and compute instance.
	GI, CI int
	// Problems are what is wrong with this instance alone. One that cannot be
	// read has its UUID and a problem, and nothing else.
	Problems []Problem `json:",omitempty"`
}

// Known reports whether the instance told enough to be offered.
func (i Instance) Known() bool { return i.Profile != "" }

// The codes of a GPU that is gone: first NVML knows it and cannot reach it, then
// it is not found any more.
const (
	CodeLost    = "gpu-lost"
	CodeMissing = "gpu-missing"
)

// Problem is one thing that is wrong with a device.
type Problem struct {
	// Code is short and stable: "gpu-lost", "nvml-timeout", "ecc-remap-pending".
	Code string
	// Message says what is wrong, in words that do not change while it lasts.
	Message string
	// Action says what to do about it.
	Action string
	// Fatal problems end what runs on the device.
	Fatal bool `json:",omitempty"`
}
