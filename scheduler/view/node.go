// SPDX-License-Identifier: MPL-2.0

package view

import "time"

// Unmeasured is the value of a measurement that was not made.
const Unmeasured = -1

// Node is one Nomad client, with or without GPUs.
type Node struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Datacenter string `json:"datacenter"`
	Pool       string `json:"pool"`
	Class      string `json:"class,omitempty"`
	Address    string `json:"address,omitempty"`
	// Status is Nomad's: initializing, ready, down or disconnected.
	Status   string `json:"status"`
	Eligible bool   `json:"eligible"`
	Draining bool   `json:"draining"`

	CPUMHz        int64 `json:"cpu_mhz"` // for tasks
	CPUUsedMHz    int64 `json:"cpu_used_mhz"`
	MemoryMiB     int64 `json:"memory_mib"`
	MemoryUsedMiB int64 `json:"memory_used_mib"`

	GPUs []GPU `json:"gpus"` // by group, then ID
	// MIGLayouts are the layouts of GPUs that follow demand.
	MIGLayouts []MIGLayout `json:"mig_layouts,omitempty"`
}

// MIGLayout is how a GPU whose layout follows demand is cut.
type MIGLayout struct {
	GPU  string `json:"gpu"`
	Name string `json:"name"` // "GPU 3"
	// Instances are profiles and the memory slices at which they begin, "3g.40gb@4".
	Instances []string `json:"instances"`
	// Cuts are its re-cuts within a day, the latest last.
	Cuts []time.Time `json:"cuts,omitempty"`
	// Cutting is true while it is being cut, and Refused why the last order was not carried out.
	Cutting bool   `json:"cutting,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// Ready reports whether Nomad would start new work here.
func (n *Node) Ready() bool { return n.Status == "ready" && n.Eligible && !n.Draining }

// GPU is one device, or one MIG instance, and who holds it.
type GPU struct {
	UUID       string `json:"uuid"`
	ParentUUID string `json:"parent_uuid,omitempty"` // of a MIG instance
	Vendor     string `json:"vendor"`
	Model      string `json:"model"` // full name, "NVIDIA H100 80GB HBM3"
	Type       string `json:"type"`  // short name, "H100"
	Group      string `json:"group"` // Nomad's device group, "nvidia/slice/H100/0"
	Mode       string `json:"mode"`  // whole, slice or shared
	Sharing    string `json:"sharing,omitempty"`
	Grade      string `json:"grade,omitempty"`
	Profile    string `json:"profile,omitempty"` // of a MIG instance

	MemoryMiB      int64 `json:"memory_mib"`
	SliceMemoryMiB int64 `json:"slice_memory_mib,omitempty"`
	// Instances are Nomad's device instances, in number order: one for a whole
	// GPU, else one per slice or replica.
	Instances []Instance `json:"instances"`

	Healthy  bool   `json:"healthy"`
	Cordoned bool   `json:"cordoned"`
	Health   string `json:"health,omitempty"` // why it is not healthy, and what to do

	HeldMilli     int64 `json:"held_milli"`
	HeldMemoryMiB int64 `json:"held_memory_mib"`
	HeldInstances int   `json:"held_instances"`

	Measured Measured `json:"measured"`
	// Holders are the tasks on the GPU, by alloc and task.
	Holders []Holder `json:"holders"`
}

// Idle reports whether no task holds any part of the GPU.
func (g *GPU) Idle() bool { return len(g.Holders) == 0 }

// Instance is one Nomad device instance.
type Instance struct {
	ID      string `json:"id"`
	Healthy bool   `json:"healthy"`
	// AllocID and Task hold the instance; empty when it is free.
	AllocID string `json:"alloc_id,omitempty"`
	Task    string `json:"task,omitempty"`
}

// Measured is what the device plugin reported last through Nomad's client
// statistics. A value that is not known is Unmeasured.
type Measured struct {
	At           time.Time `json:"at,omitzero"`
	Milli        int64     `json:"milli"`
	MemoryMiB    int64     `json:"memory_mib"`
	TemperatureC int64     `json:"temperature_c"`
	PowerW       int64     `json:"power_w"`
}

// Holder is a task that holds part of a GPU.
type Holder struct {
	AllocID   string `json:"alloc_id"`
	Namespace string `json:"namespace"`
	JobID     string `json:"job_id"`
	Group     string `json:"group"`
	Task      string `json:"task"`
	Queue     string `json:"queue,omitempty"`
	Priority  int    `json:"priority"`
	Status    string `json:"status"` // Nomad's client status

	Instances      int       `json:"instances"`
	MemoryMiB      int64     `json:"memory_mib"`
	GuaranteeMilli int64     `json:"guarantee_milli"`
	LimitMilli     int64     `json:"limit_milli"`
	Since          time.Time `json:"since"`
	// Direct work was submitted around the service.
	Direct bool `json:"direct,omitempty"`
	// Use is the last measured use; nil: it is not known.
	Use *Use `json:"use,omitempty"`
}

// Use is what a task uses of a GPU.
type Use struct {
	At        time.Time `json:"at"`
	Milli     int64     `json:"milli"`      // Unmeasured where it is not known
	MemoryMiB int64     `json:"memory_mib"` // likewise
	// Seat is where a task with a seat is: waiting, resident, suspended, idle and others.
	Seat string `json:"seat,omitempty"`
	// SeatSince is since when and SeatWhy why it is there; from SeatFirst on it comes
	// before all others.
	SeatSince time.Time `json:"seat_since,omitzero"`
	SeatFirst time.Time `json:"seat_first,omitzero"`
	SeatWhy   string    `json:"seat_reason,omitempty"`
	// UnusedSince is since when it was measured again and again to compute nothing; zero
	// where it does, or where that is not known.
	UnusedSince time.Time `json:"unused_since,omitzero"`
	// Idle is set once that is as long as its queue allows; Action is what its queue has
	// decided of idle work: report, suspend or evict.
	Idle   bool   `json:"idle,omitempty"`
	Action string `json:"idle_action,omitempty"`
}
