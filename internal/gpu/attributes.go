// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"slices"
	"strings"
)

// The names of a device group's attributes, which the device plugin publishes,
// the placement service reads and jobs put constraints on. Memory is in MiB,
// with its unit; the others are plain numbers, words and flags. What begins with
// "unique." is not part of Nomad's node class.
const (
	AttrModel             = "model" // NVML's name
	AttrType              = "type"  // ShortModel of it
	AttrMemory            = "memory"
	AttrSliceMemory       = "slice_memory"
	AttrSlices            = "slices"
	AttrComputeBurst      = "compute_burst"    // milli
	AttrHealthy           = "healthy"          // how many instances are
	AttrUnhealthy         = "unique.unhealthy" // why instances are not
	AttrSharing           = "sharing"
	AttrGrade             = "grade"
	AttrComputeGrade      = "compute_grade" // ComputeEnforced, or absent
	AttrShared            = "shared"
	AttrProfile           = "profile" // of a MIG instance
	AttrIndex             = "index"
	AttrUUID              = "unique.uuid"
	AttrParent            = "unique.parent"  // the GPU of a MIG instance, where all of the group have the same
	AttrParents           = "unique.parents" // Parents
	AttrPCI               = "unique.pci"
	AttrCloseness         = "unique.closeness" // Closeness: unique, since it names GPUs
	AttrNUMANode          = "numa_node"
	AttrComputeCapability = "compute_capability"
	AttrDriverVersion     = "driver_version"
	AttrCUDAVersion       = "cuda_version"
	AttrMaxClients        = "max_clients"
	AttrMPSUsers          = "mps_users" // MPSUsersAny or MPSUsersOne
	AttrMPSProtocol       = "mps_protocol"
	AttrTimeslice         = "timeslice"
	AttrSeatPriority      = "seat_priority" // the highest that a job may give a task with a seat
	AttrVirtual           = "vgpu"
	AttrTarget            = "gfx_target" // AMD's instruction set: gfx942
	AttrTiles             = "tiles"      // Intel's
	AttrFunctions         = "sriov_vfs"  // Intel's: how many virtual functions a card can have
	AttrAICores           = "ai_cores"   // Huawei's
)

// The types of device groups: the middle word of their names.
const (
	TypeSlice    = "slice"
	TypeShared   = "shared"
	TypeMIG      = "mig"
	TypeMIGSlice = "mig-slice"
	// The parts of other vendors' devices; sliced, their types end with "-slice".
	TypePartition = "partition"
	TypeVF        = "vf"
	TypeVNPU      = "vnpu"
)

// partTypes are those of groups whose devices are parts of GPUs, given out as they are.
var partTypes = []string{TypeMIG, TypePartition, TypeVF, TypeVNPU}

// ModeOfType is how the devices of a group are offered, by its type; part is set where
// they are parts of GPUs. The last result is false for an unknown type.
func ModeOfType(name string) (mode Mode, part, known bool) {
	switch name {
	case TypeSlice:
		return ModeSlice, false, true
	case TypeShared:
		return ModeShared, false, true
	case "gpu", "npu":
		return ModeWhole, false, true
	}
	base, sliced := strings.CutSuffix(name, "-"+TypeSlice)
	base, shared := strings.CutSuffix(base, "-"+TypeShared)
	switch {
	case !slices.Contains(partTypes, base) || sliced && shared:
		return "", false, false
	case sliced:
		return ModeSlice, true, true
	case shared:
		return ModeShared, true, true
	}
	return ModeWhole, true, true
}
