package device

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// groupName is what Nomad calls a device group.
type groupName struct{ vendor, kind, name string }

// String is the name as a job writes it: "nvidia/slice/H100/0".
func (n groupName) String() string { return n.vendor + "/" + n.kind + "/" + n.name }

// unit is one device that is offered: a GPU, or a MIG instance. A plan is a
// list of units.
type unit struct {
	uuid string
	// parent is the GPU of a MIG instance, empty for a GPU.
	parent string
	// gpu is the physical device in either case.
	gpu      hardware.GPU
	instance *hardware.Partition
	// index is the number in the group's name, which belongs to the UUID for good.
	index     int
	sharing   config.Sharing
	slices    int
	memoryMiB int64
	group     groupName
	// faults make every instance unhealthy; cordon, a reason, only those that
	// are free.
	faults []gpu.Fault
	cordon string
	// held are the instances that tasks hold; heldAll stands for every one.
	held    map[int]bool
	heldAll bool
	// released devices are let go of, and have no daemon.
	released bool
	// busy GPUs are not touched; gone ones are not in the machine.
	busy, gone bool
	// numbers that the MPS daemon and the driver brought along
	mps       *gpu.MPSState
	limiter   *gpu.MemoryLimiter // where the driver holds slices to their memory
	static    bool               // its MPS daemon is to give each task multiprocessors of its own
	seats     *gpu.SeatRules     // where tasks step aside for each other
	exclusive bool               // it lets in the MPS server only
	unsettled bool               // its CDI name or its MPS daemon is in the making
	hami      *gpu.HAMiState
	timeslice string
	cdi       string
}

// owner is the UUID of the physical GPU.
func (u *unit) owner() string {
	if u.parent != "" {
		return u.parent
	}
	return u.uuid
}

// offered reports whether the unit has instances of its own; a GPU with MIG has
// none, its MIG instances do.
func (u *unit) offered() bool { return !u.sharing.Mode.InParts() }

// ids are the unit's Nomad instances in order.
func (u *unit) ids() []string {
	switch u.sharing.Mode {
	case gpu.ModeMIG, gpu.ModePartition:
		return nil
	case gpu.ModeWhole:
		return []string{u.uuid}
	}
	ids := make([]string, u.slices)
	for n := range ids {
		ids[n] = gpu.SliceID{UUID: u.uuid, N: n}.String()
	}
	return ids
}

// trouble says why an instance takes no new work; it is zero for a healthy one.
// Only its own text decides whether Nomad sees a change, so there is nothing in
// it that moves.
func (u *unit) trouble(n int) gpu.Health {
	switch {
	case len(u.faults) > 0:
		return gpu.Health{Fault: u.faults[0]}
	case !u.heldAll && !u.held[n]:
		return gpu.Health{Cordon: u.cordon}
	default:
		return gpu.Health{}
	}
}

// healthy counts the instances that take new work.
func (u *unit) healthy() int {
	count := 0
	for n := range u.ids() {
		if u.trouble(n) == (gpu.Health{}) {
			count++
		}
	}
	return count
}

// state is what the task driver is told about the unit.
func (u *unit) state() gpu.GPUState {
	s := gpu.GPUState{
		UUID: u.uuid, ParentUUID: u.parent, Vendor: u.gpu.Vendor, Model: u.gpu.Model,
		Mode: u.sharing.Mode, Sharing: u.sharing.Mechanism, Grade: u.grade(),
		MemoryMiB: u.memoryMiB, Slices: u.slices, CDIDevice: u.cdi,
		Timeslice: u.timeslice, Exclusive: u.exclusive, Limiter: u.limiter, MPS: u.mps, HAMi: u.hami, Seats: u.seats,
		Faults: slices.Clone(u.faults), Cordoned: u.cordon != "", CordonReason: u.cordon,
	}
	if u.offered() {
		s.Group = u.group.String()
	}
	if u.sharing.Mode == gpu.ModeSlice {
		s.SliceMemoryMiB = u.sharing.SliceMiB
	}
	if u.instance != nil {
		s.Profile = u.instance.Profile
	}
	if u.sharing.Mechanism == gpu.SharingDmem && u.instance == nil {
		s.Dmem = u.gpu.Dmem
	}
	return s
}

// grade is how hard the tasks of different instances are kept apart.
func (u *unit) grade() gpu.Grade {
	if u.sharing.Mode == gpu.ModeWhole || u.sharing.Mode.InParts() {
		return gpu.GradeHardware
	}
	if u.limiter != nil {
		return gpu.GradeEnforced
	}
	return u.sharing.Mechanism.Grade()
}
