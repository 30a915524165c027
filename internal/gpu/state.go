// SPDX-License-Identifier: MPL-2.0

package gpu

import "time"

// StateVersion is the version of the node's state files that this release
// writes. Readers accept every version up to it.
const StateVersion = 1

// GPUState is what the device plugin knows of one device now, for the driver: a
// GPU, or a MIG instance. One state file each.
type GPUState struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"`
	UUID    string `json:"uuid"`
	// ParentUUID is the GPU that a MIG instance lies on; empty for a GPU.
	ParentUUID string `json:"parent_uuid,omitempty"`
	Vendor     string `json:"vendor"`
	// Model is the device's full name, such as "NVIDIA H100 80GB HBM3"; Profile
	// is a MIG instance's, such as "1g.10gb".
	Model   string `json:"model"`
	Profile string `json:"profile,omitempty"`
	// Group is the Nomad device group that offers it: "nvidia/slice/H100/0".
	Group   string  `json:"group"`
	Mode    Mode    `json:"mode"`
	Sharing Sharing `json:"sharing"`
	Grade   Grade   `json:"grade"`
	// MemoryMiB is the whole device's memory, SliceMemoryMiB one slice's, and
	// Slices how many slices or replicas there are.
	MemoryMiB      int64 `json:"memory_mib"`
	SliceMemoryMiB int64 `json:"slice_memory_mib,omitempty"`
	Slices         int   `json:"slices,omitempty"`
	// CDIDevice is the qualified CDI name that gives a container the device.
	CDIDevice string `json:"cdi_device"`
	// Timeslice is the time-slice length in force; empty for the default.
	Timeslice string `json:"timeslice,omitempty"`
	// Exclusive devices let in their MPS server only: a task that holds all of one, and
	// so runs without MPS, waits until it is open.
	Exclusive bool `json:"exclusive,omitempty"`
	// Limiter is the program that has the vendor's driver hold a task's control group to its slices'
	// memory; nil where it cannot.
	Limiter *MemoryLimiter `json:"limiter,omitempty"`
	MPS     *MPSState      `json:"mps,omitempty"`
	HAMi    *HAMiState     `json:"hami,omitempty"`
	// Seats are the rules by which tasks step aside for each other, under SharingSuspend.
	Seats *SeatRules `json:"seats,omitempty"`
	// Dmem is the region of the device's memory for control groups: under SharingDmem
	// the task's is limited there.
	Dmem string `json:"dmem,omitempty"`
	// Faults are the reasons why no task may start here now; none is healthy.
	Faults []Fault `json:"faults,omitempty"`
	// Cordoned devices take no new work; what runs, and restarts in place, goes on.
	Cordoned bool `json:"cordoned,omitempty"`
	// CordonReason says why, for a person.
	CordonReason string `json:"cordon_reason,omitempty"`
}

// MemoryLimiter is a program, with its first arguments, that sets limits of GPU memory.
// After those come the device's UUID, the control group's directory, the
// guarantee and the limit, in MiB.
type MemoryLimiter struct {
	Command []string `json:"command"`
}

// MPSState is where a device's MPS control daemon is reached, and whether.
type MPSState struct {
	// PipeDir, LogDir and ShmDir are host paths; ShmDir is the daemon's /dev/shm.
	PipeDir string `json:"pipe_dir"`
	LogDir  string `json:"log_dir"`
	ShmDir  string `json:"shm_dir"`
	// ControlDir is where the daemon takes commands; in PipeDir it has a gate, which
	// hands on CUDA programs alone. Empty from releases that had none.
	ControlDir string `json:"control_dir,omitempty"`
	// GateDir has the gate's files where only root reaches them. Tasks that can write to
	// PipeDir may put others in the place of those there. Empty for gates of earlier releases.
	GateDir string `json:"gate_dir,omitempty"`
	// Ready is true only after the daemon answered and confirmed its limits.
	Ready bool `json:"ready"`
	// Generation grows with every start of the daemon: clients of an earlier
	// generation have lost their server.
	Generation int64 `json:"generation"`
	// StartedAt is when this generation began, LastEnd why the one before ended,
	// for a person.
	StartedAt time.Time `json:"started_at,omitzero"`
	LastEnd   string    `json:"last_end,omitempty"`
	// Control is the program that speaks to the daemon, by path or by name.
	Control string `json:"control,omitempty"`
	// Users says whose programs its server takes: MPSUsersAny or MPSUsersOne, or
	// empty from releases that did not look.
	Users string `json:"users,omitempty"`
	// Priorities says whether programs can have one (CUDA_MPS_CLIENT_PRIORITY).
	Priorities bool `json:"priorities,omitempty"`
	// Fault is set while a fatal error of one client keeps the server from taking
	// others: the programs of all tasks on it have lost their data on the GPU. FaultOf
	// is the lease of the task whose program it was, empty where it is unknown.
	Fault   *Fault `json:"fault,omitempty"`
	FaultOf string `json:"fault_of,omitempty"`
	// Partitioning is set where every task has multiprocessors of its own.
	Partitioning *MPSPartitioning `json:"partitioning,omitempty"`
	// Protocol is 3 where each task has a namespace of MPS v3, in the server MPSServer; 0 or
	// 2 elsewhere. ProtocolReason says why that one, for a person.
	Protocol       int    `json:"protocol,omitempty"`
	ProtocolReason string `json:"protocol_reason,omitempty"`
	// Multiprocessors are the device's, 0 where they are not known.
	Multiprocessors int `json:"multiprocessors,omitempty"`
	// MaxClients is how many client processes the daemon can serve.
	MaxClients int `json:"max_clients"`
}

// MPSServer is the name of the server under MPS v3 that has the namespaces of tasks.
const MPSServer = "tasks"

// HasNamespaces reports whether each task has a namespace of its own, as under MPS v3.
func (s MPSState) HasNamespaces() bool { return s.Protocol == 3 }

// CommandDir is the pipe directory in which the daemon takes commands.
func (s MPSState) CommandDir() string {
	if s.ControlDir != "" {
		return s.ControlDir
	}
	return s.PipeDir
}

// GateFiles is the directory whose socket and log pipe are the gate's.
func (s MPSState) GateFiles() string {
	if s.GateDir != "" {
		return s.GateDir
	}
	return s.PipeDir
}

// An MPS server takes clients of every user, or of one at a time: then a client
// of another user waits, without a word, until all clients of the first have
// ended.
const (
	MPSUsersAny = "any"
	MPSUsersOne = "one"
)

// HAMiState is where HAMi-core lies on the host.
type HAMiState struct {
	Library string `json:"library"`
	LockDir string `json:"lock_dir"`
}

// Fault is one reason why a device is unhealthy, for a person.
type Fault struct {
	// Code is stable and short, such as "xid-79" or "mps-not-ready".
	Code    string    `json:"code"`
	Message string    `json:"message"`
	Action  string    `json:"action"`
	Since   time.Time `json:"since"`
	// Fatal faults end what runs on the device: its programs cannot go on.
	Fatal bool `json:"fatal,omitempty"`
}

// String is the fault in one line: its message, and the action.
func (f Fault) String() string { return f.Message + "; " + f.Action }

// Usage is what the device plugin measured of every task, for the driver's
// watchdog and statistics. One state file.
type Usage struct {
	Version    int         `json:"version"`
	BootID     string      `json:"boot_id"`
	MeasuredAt time.Time   `json:"measured_at"`
	Tasks      []TaskUsage `json:"tasks"`
	// Devices are those whose tasks step aside for each other.
	Devices []DeviceUsage `json:"devices,omitempty"`
}

// DeviceUsage is a device's memory: the part that all programs hold, and the size.
type DeviceUsage struct {
	UUID        string `json:"uuid"`
	UsedMiB     int64  `json:"used_mib"`
	CapacityMiB int64  `json:"capacity_mib"`
}

// TaskUsage is what one task, all its processes together, uses of one device.
type TaskUsage struct {
	LeaseID   string `json:"lease_id"`
	UUID      string `json:"uuid"`
	MemoryMiB int64  `json:"memory_mib"`
	// Milli is the compute used, -1 where the device does not tell.
	Milli     int64 `json:"milli"`
	Processes int   `json:"processes"`
	// BesideMPS lists host PIDs that hold a context of their own on a device
	// where only MPS clients belong: they slipped past their limits.
	BesideMPS []int `json:"beside_mps,omitempty"`
}

// Notices are what tasks were told of their GPUs, so that no task is told twice. The
// driver's own state file; the device plugin does not read it.
type Notices struct {
	Version int      `json:"version"`
	BootID  string   `json:"boot_id"`
	Told    []Notice `json:"told"`
}

// Notice is a message to one container's task. UUID is empty for one that is
// not of one GPU; Fault marks the code of a fault of the GPU.
type Notice struct {
	Container string `json:"container"`
	UUID      string `json:"uuid,omitempty"`
	Code      string `json:"code"`
	Fault     bool   `json:"fault,omitempty"`
}
