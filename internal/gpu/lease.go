// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"time"
)

// Phase is where a lease's task is in its life.
type Phase string

const (
	// PhaseStarting is set before the container exists.
	PhaseStarting Phase = "starting"
	// PhaseRunning is set once the task's process runs.
	PhaseRunning Phase = "running"
	// PhaseEnded leases are kept for a while: Nomad restarts a task in place
	// with the same reservation, and its GPU must not change mode in between.
	PhaseEnded Phase = "ended"
)

// Lease is the driver's record that a task runs on slices: written before the
// task starts, one file per task.
type Lease struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"`
	// ID is LeaseID(AllocID, Task).
	ID        string `json:"id"`
	AllocID   string `json:"alloc_id"`
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Task      string `json:"task"`
	// Container is the runtime's name for the container, Cgroup the path of its
	// control group below the cgroup mount.
	Container string    `json:"container"`
	Cgroup    string    `json:"cgroup"`
	Phase     Phase     `json:"phase"`
	Holdings  []Holding `json:"holdings"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
}

// Holding is the share that a task holds of one device.
type Holding struct {
	UUID   string `json:"uuid"`
	Mode   Mode   `json:"mode"`
	Slices []int  `json:"slices,omitempty"`
	// MPSGeneration is the start of the MPS daemon whose client the task is; 0
	// for a task without MPS. Under a later one the task has lost its server.
	MPSGeneration int64 `json:"mps_generation,omitempty"`
	// Partition is the task's under static partitioning; nil elsewhere. Its ID is empty
	// until it is made.
	Partition *Partition `json:"partition,omitempty"`
	// SeatMiB is what a task with a seat may need of the host's memory while it is
	// suspended; 0 for a task without one. SeatPriority says who goes first.
	SeatMiB      int64 `json:"seat_mib,omitempty"`
	SeatPriority int   `json:"seat_priority,omitempty"`
	Share
}

// Share is an amount of one GPU. Zero means not limited, or not promised.
type Share struct {
	// MemoryMiB caps the task's GPU memory, all its processes together.
	MemoryMiB int64 `json:"memory_mib,omitempty"`
	// MemoryLimitMiB is the most that the task may have while others leave it, where that
	// is more than MemoryMiB, which is then its own whatever others want.
	MemoryLimitMiB int64 `json:"memory_limit_mib,omitempty"`
	// GuaranteeMilli is the compute that the planner keeps free for the task,
	// LimitMilli the most that it may use.
	GuaranteeMilli int64 `json:"guarantee_milli,omitempty"`
	LimitMilli     int64 `json:"limit_milli,omitempty"`
}

// MostMiB is how much memory the task may have at any time; 0 is not limited.
func (s Share) MostMiB() int64 { return max(s.MemoryMiB, s.MemoryLimitMiB) }

// LeaseID names a task of an allocation; it is safe as a file name.
func LeaseID(allocID, task string) string {
	name := url.PathEscape(task)
	if len(name) > 100 {
		sum := sha256.Sum256([]byte(task))
		name = hex.EncodeToString(sum[:16])
	}
	return allocID + "." + name
}

// Live reports whether the lease's task may be using its devices.
func (l Lease) Live() bool { return l.Phase != PhaseEnded }

// CheckSlices reports whether none of what wanted holds is held by a live lease of
// another task: Nomad may take a task for ended that is not.
func CheckSlices(wanted Lease, leases []Lease) error {
	for _, w := range wanted.Holdings {
		for _, l := range leases {
			if l.ID == wanted.ID || !l.Live() {
				continue
			}
			for _, h := range l.Holdings {
				if h.overlaps(w) {
					return fmt.Errorf("GPU %s: what the task was given is still held by task %q of allocation %s, whose container %s is not proven to be gone", w.UUID, l.Task, l.AllocID, l.Container)
				}
			}
		}
	}
	return nil
}

// overlaps reports whether two tasks would use the same part of a device. Holdings
// without slices are the whole device.
func (h Holding) overlaps(other Holding) bool {
	if h.UUID != other.UUID {
		return false
	}
	if len(h.Slices) == 0 || len(other.Slices) == 0 {
		return true
	}
	return slices.ContainsFunc(h.Slices, func(s int) bool { return slices.Contains(other.Slices, s) })
}

// CheckGuarantees reports whether the guarantees of the live leases on each of
// wanted's devices, with wanted added, stay within one GPU. A lease with
// wanted's own ID is left out, since it is about to be replaced.
func CheckGuarantees(wanted Lease, leases []Lease) error {
	for _, w := range wanted.Holdings {
		sum := int64(0)
		for _, l := range leases {
			if l.ID == wanted.ID || !l.Live() {
				continue
			}
			for _, h := range l.Holdings {
				if h.UUID == w.UUID {
					sum += h.GuaranteeMilli
				}
			}
		}
		if sum+w.GuaranteeMilli > MilliPerGPU {
			advice := fmt.Sprintf("ask for at most %s (compute = %d in a gpu block)", FormatMilli(MilliPerGPU-sum), MilliPerGPU-sum)
			if sum >= MilliPerGPU {
				advice = "wait until one of them ends"
			}
			return fmt.Errorf("compute guarantee of %s does not fit on GPU %s: %s of it is promised to other tasks; %s",
				FormatMilli(w.GuaranteeMilli), w.UUID, FormatMilli(sum), advice)
		}
	}
	return nil
}
