// SPDX-License-Identifier: MPL-2.0

package config

// rawConfig is the configuration as Nomad decodes it with Schema: words
// that are not yet checked.
type rawConfig struct {
	Enabled           bool     `codec:"enabled"`
	IgnoredGPUIDs     []string `codec:"ignored_gpu_ids"`
	FingerprintPeriod string   `codec:"fingerprint_period"`
	StateDir          string   `codec:"state_dir"`
	DataDir           string   `codec:"data_dir"`
	MIGNames          string   `codec:"mig_names"`
	ModeChangeDelay   string   `codec:"mode_change_delay"`
	NvidiaSMI         string   `codec:"nvidia_smi"`
	CDIHook           string   `codec:"cdi_hook"`
	DriverRoot        string   `codec:"driver_root"`
	MemoryLimits      bool     `codec:"memory_limits"`
	DevRoot           string   `codec:"dev_root"`
	LibraryPath       []string `codec:"library_path"`

	rawSharing

	Vendors    []string    `codec:"vendors"`
	GPUs       []rawRule   `codec:"gpu"`
	MPS        *MPS        `codec:"mps"`
	HAMi       *rawHAMi    `codec:"hami"`
	Suspend    *rawSuspend `codec:"suspend"`
	Health     *rawHealth  `codec:"health"`
	Metrics    *rawMetrics `codec:"metrics"`
	Simulation *Simulation `codec:"simulation"`
}

// rawSharing holds the keys that say how a device is offered; absent ones are
// inherited.
type rawSharing struct {
	Mode         *string `codec:"mode"`
	Sharing      *string `codec:"sharing"`
	SliceMemory  *string `codec:"slice_memory"`
	Headroom     *string `codec:"headroom"`
	Replicas     *int64  `codec:"replicas"`
	Timeslice    *string `codec:"timeslice"`
	ComputeBurst *int64  `codec:"compute_burst" as:"compute"`
}

type rawRule struct {
	UUID   *string `codec:"uuid"`
	Index  *int64  `codec:"index"`
	PCI    *string `codec:"pci"`
	Model  *string `codec:"model"`
	Vendor *string `codec:"vendor"`
	rawSharing
	Layout   *string    `codec:"layout"`
	Demand   *rawDemand `codec:"demand"`
	Profiles []string   `codec:"profiles"`
	MIG      []rawMIG   `codec:"mig"`
}

// rawDemand bounds a layout that follows demand.
type rawDemand struct {
	Least  []string `codec:"least"`
	AtOnce int64    `codec:"at_once"`
	PerDay int64    `codec:"per_day"`
}

type rawMIG struct {
	Profile *string `codec:"profile"`
	rawSharing
}

// MPS is the mps block: how MPS daemons are run.
type MPS struct {
	Control    string `codec:"control"`
	MultiUser  bool   `codec:"multi_user"`
	MaxClients int    `codec:"max_clients"`
	HostShm    bool   `codec:"host_shm"`
	ShmSize    string `codec:"shm_size"`
	Exclusive  bool   `codec:"exclusive"`
	Static     bool   `codec:"static_partitioning"`
	Protocol   string `codec:"protocol"`
}

type rawHAMi struct {
	Library string `codec:"library"`
	LockDir string `codec:"lock_dir"`
}

type rawSuspend struct {
	HostMemory   string `codec:"host_memory"`
	Idle         string `codec:"idle"`
	Headroom     string `codec:"headroom"`
	MinTurn      string `codec:"min_turn"`
	MaxWait      string `codec:"max_wait"`
	MaxSwitching *int64 `codec:"max_switching"`
	MaxPriority  *int64 `codec:"max_priority"`

	Unsuspendable string `codec:"unsuspendable"`
}

type rawHealth struct {
	Interval        string   `codec:"interval"`
	Timeout         string   `codec:"timeout"`
	Measure         string   `codec:"measure"`
	Ignore          []string `codec:"ignore"`
	ApplicationXIDs []uint64 `codec:"application_xids"`
	FatalXIDs       []uint64 `codec:"fatal_xids"`
}

type rawMetrics struct {
	Address string `codec:"address"`
	DCGM    bool   `codec:"dcgm"`
}

// Simulation is the simulation block: the machine that stands in for hardware.
type Simulation struct {
	Topology string `codec:"topology"`
	Dir      string `codec:"dir"`
	Machine  string `codec:"machine"`
	BootID   string `codec:"boot_id"`
	DCMI     string `codec:"dcmi"`
}
