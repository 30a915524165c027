package gpu

// The names of a device group's attributes, which the device plugin publishes,
// the placement service reads and jobs put constraints on. Memory is in MiB,
// with its unit; the others are plain numbers, words and flags. What begins with
// "unique." is no part of Nomad's node class.
const (
	AttrModel             = "model" // NVML's name
	AttrType              = "type"  // ShortModel of it
	AttrMemory            = "memory"
	AttrSliceMemory       = "slice_memory"
	AttrSlices            = "slices"
	AttrComputeBurst      = "compute_burst" // milli
	AttrHealthy           = "healthy"       // how many instances are
	AttrSharing           = "sharing"
	AttrGrade             = "grade"
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
	AttrTimeslice         = "timeslice"
	AttrVirtual           = "vgpu"
)

// The types of device groups: the middle word of their names.
const (
	TypeSlice     = "slice"
	TypeShared    = "shared"
	TypeMIG       = "mig"
	TypeMIGSlice  = "mig-slice"
	TypeMIGShared = "mig-shared"
)
