// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// GroupName is what Nomad calls a device group.
type GroupName struct{ Vendor, Kind, Name string }

// String is the name as a job writes it: "nvidia/slice/H100/0".
func (n GroupName) String() string { return n.Vendor + "/" + n.Kind + "/" + n.Name }

// Unit is one device that is offered: a GPU, or a MIG instance. A plan is a
// list of units.
type Unit struct {
	UUID string
	// Parent is the GPU of a MIG instance, empty for a GPU.
	Parent string
	// GPU is the physical device in either case.
	GPU      hardware.GPU
	Instance *hardware.Partition
	// Index is the number in the group's name, which belongs to the UUID for good.
	Index     int
	Sharing   config.Sharing
	Slices    int
	MemoryMiB int64
	Group     GroupName
	// Faults make every instance unhealthy; Cordon, a reason, only those that
	// are free.
	Faults []gpu.Fault
	Cordon string
	// Held are the instances that tasks hold; HeldAll stands for every one.
	Held    map[int]bool
	HeldAll bool
	// Released devices are let go of, and have no daemon.
	Released bool
	// Busy GPUs are not touched; Gone ones are not in the machine.
	Busy, Gone bool
	// What prepares it for tasks brings along the rest.
	MPS       *gpu.MPSState
	Limiter   *gpu.MemoryLimiter // where the driver holds slices to their memory
	Static    bool               // its MPS daemon is to give each task multiprocessors of its own
	Seats     *gpu.SeatRules     // where tasks step aside for each other
	Exclusive bool               // it lets in the MPS server only
	Unsettled bool               // its CDI name or its MPS daemon is in the making
	HAMi      *gpu.HAMiState
	Demand    *gpu.MIGDemand // where the GPU's layout follows demand
	Timeslice string
	CDI       string
}

// Owner is the UUID of the physical GPU.
func (u *Unit) Owner() string {
	if u.Parent != "" {
		return u.Parent
	}
	return u.UUID
}

// Offered reports whether the unit has instances of its own; a GPU with MIG has
// none, its MIG instances do.
func (u *Unit) Offered() bool { return !u.Sharing.Mode.InParts() }

// IDs are the unit's Nomad instances in order.
func (u *Unit) IDs() []string {
	switch u.Sharing.Mode {
	case gpu.ModeMIG, gpu.ModePartition:
		return nil
	case gpu.ModeWhole:
		return []string{u.UUID}
	}
	ids := make([]string, u.Slices)
	for n := range ids {
		ids[n] = gpu.SliceID{UUID: u.UUID, N: n}.String()
	}
	return ids
}

// trouble says why an instance takes no new work; it is zero for a healthy one.
// Only its own text decides whether Nomad sees a change, so there is nothing in
// it that moves.
func (u *Unit) trouble(n int) gpu.Health {
	switch {
	case len(u.Faults) > 0:
		return gpu.Health{Fault: u.Faults[0]}
	case !u.HeldAll && !u.Held[n]:
		return gpu.Health{Cordon: u.Cordon}
	default:
		return gpu.Health{}
	}
}

// Healthy counts the instances that take new work.
func (u *Unit) Healthy() int {
	count := 0
	for n := range u.IDs() {
		if u.trouble(n) == (gpu.Health{}) {
			count++
		}
	}
	return count
}

// whyUnhealthy is what keeps the first instance that takes no new work from it; empty where all do.
func (u *Unit) whyUnhealthy() string {
	for n := range u.IDs() {
		if why := u.trouble(n).String(); why != "" {
			return why
		}
	}
	return ""
}

// State is what the task driver is told about the unit.
func (u *Unit) State() gpu.GPUState {
	s := gpu.GPUState{
		UUID: u.UUID, ParentUUID: u.Parent, Vendor: u.GPU.Vendor, Model: u.GPU.Model,
		Mode: u.Sharing.Mode, Sharing: u.Sharing.Mechanism, Grade: u.Grade(),
		MemoryMiB: u.MemoryMiB, Slices: u.Slices, CDIDevice: u.CDI,
		Timeslice: u.Timeslice, Exclusive: u.Exclusive, Limiter: u.Limiter, MPS: u.MPS, HAMi: u.HAMi, Seats: u.Seats,
		Faults: slices.Clone(u.Faults), Cordoned: u.Cordon != "", CordonReason: u.Cordon,
	}
	if u.Offered() {
		s.Group = u.Group.String()
	}
	if u.Sharing.Mode == gpu.ModeSlice {
		s.SliceMemoryMiB = u.Sharing.SliceMiB
	}
	if u.Instance != nil {
		s.Profile = u.Instance.Profile
	}
	if u.Sharing.Mechanism == gpu.SharingDmem && u.Instance == nil {
		s.Dmem = u.GPU.Dmem
	}
	return s
}

// Grade is how hard the tasks of different instances are kept apart.
func (u *Unit) Grade() gpu.Grade {
	if u.Sharing.Mode == gpu.ModeWhole || u.Sharing.Mode.InParts() {
		return gpu.GradeHardware
	}
	if u.Limiter != nil {
		return gpu.GradeEnforced
	}
	return u.Sharing.Mechanism.Grade()
}

// NeedsDaemon reports whether an MPS daemon is to serve the unit.
func (u *Unit) NeedsDaemon() bool {
	return u.Sharing.Mechanism == gpu.SharingMPS && !u.Released && u.Unable() == ""
}

// UnderMPS reports whether the programs of a holding must be MPS clients: a
// task that has all slices runs without MPS.
func (u *Unit) UnderMPS(h gpu.Holding) bool {
	return u.Sharing.Mechanism == gpu.SharingMPS && h.Mode != gpu.ModeWhole && len(h.Slices) > 0 &&
		!(h.Mode == gpu.ModeSlice && len(h.Slices) == u.Slices)
}

// WholeSince is when the task began that holds all of a unit, zero where none does.
func (u *Unit) WholeSince(leases []gpu.Lease) time.Time {
	for _, l := range leases {
		for _, h := range l.Holdings {
			if l.Live() && h.UUID == u.UUID && h.Mode == gpu.ModeSlice && len(h.Slices) == u.Slices {
				return l.StartedAt
			}
		}
	}
	return time.Time{}
}

// CountHeld counts the instances that tasks hold.
func (u *Unit) CountHeld() int {
	if u.HeldAll {
		return len(u.IDs())
	}
	return len(u.Held)
}

// SharedFlag reports whether several tasks may be on the device at once.
func (u *Unit) SharedFlag() bool {
	return u.Sharing.Mode == gpu.ModeSlice || u.Sharing.Mode == gpu.ModeShared
}

// Unable says why a device cannot be offered as it is configured; empty if it can.
func (u *Unit) Unable() string {
	can := gpu.Sharings(u.GPU.Vendor)
	switch {
	case u.Sharing.Mode == gpu.ModeSlice && !gpu.InSlices(u.GPU.Vendor):
		return fmt.Sprintf("mode \"slice\": nothing keeps tasks apart on one of %s's devices but vNPUs; write mode = \"partition\" with profiles", u.GPU.Vendor)
	case u.Sharing.Mode == gpu.ModeSlice && u.MemoryMiB == 0:
		return "mode \"slice\": the driver does not tell how much memory the device has"
	case (u.Sharing.Mode == gpu.ModeSlice || u.Sharing.Mode == gpu.ModeShared) && !slices.Contains(can, u.Sharing.Mechanism):
		names := make([]string, len(can))
		for n, s := range can {
			names[n] = string(s)
		}
		return fmt.Sprintf("sharing %q: %s devices know %s", u.Sharing.Mechanism, u.GPU.Vendor, strings.Join(names, ", "))
	case u.Sharing.Mode == gpu.ModeSlice && u.Sharing.Mechanism == gpu.SharingMPS && beforeVolta(u.GPU.ComputeCapability):
		return fmt.Sprintf("mode \"slice\" with sharing \"mps\": MPS limits programs and keeps their memory apart from compute capability 7.0 (Volta) on, and this GPU has %s; offer it whole, or with sharing = \"timeslice\"", u.GPU.ComputeCapability)
	case u.Static && u.Instance != nil:
		return "mps { static_partitioning }: NVIDIA does not say that it divides MIG instances; make smaller ones"
	case u.Static && major(u.GPU.ComputeCapability) < 8:
		return fmt.Sprintf("mps { static_partitioning }: it takes a GPU of compute capability 8.0 (Ampere) or later, and this one has %q", u.GPU.ComputeCapability)
	case u.Sharing.Mechanism == gpu.SharingSuspend && (u.Sharing.Mode != gpu.ModeShared || u.Instance != nil):
		return "sharing \"suspend\": it is for GPUs in mode \"shared\", not for slices and MIG instances"
	case u.Sharing.Mechanism == gpu.SharingDmem && u.Instance != nil:
		return "sharing \"dmem\": the kernel limits the memory of GPUs, not of their partitions"
	case u.Sharing.Mechanism == gpu.SharingDmem && u.GPU.Dmem == "":
		return "sharing \"dmem\": the kernel cannot limit this device's memory; that takes Linux 6.14 with control groups version 2, and a driver that takes part"
	}
	return ""
}

// beforeVolta reports whether a GPU's programs share one address space under MPS, without
// limits of threads.
func beforeVolta(capability string) bool {
	m := major(capability)
	return m > 0 && m < 7
}

// major is the first number of a compute capability, 0 where that is not known.
func major(capability string) int {
	number, _, _ := strings.Cut(capability, ".")
	n, err := strconv.Atoi(number)
	if err != nil {
		return 0
	}
	return n
}
