// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"strconv"
	"time"
)

// SeatState is where a task with a seat is: on the device, or beside it.
type SeatState string

const (
	// SeatWaiting is a task that has not been started: its first turn has not come.
	SeatWaiting SeatState = "waiting"
	// SeatResident tasks have their memory on the device.
	SeatResident SeatState = "resident"
	// SeatSuspending tasks are on their way to the host, SeatResuming on their way back.
	SeatSuspending SeatState = "suspending"
	SeatResuming   SeatState = "resuming"
	// SeatSuspended tasks have their GPU memory on the host.
	SeatSuspended SeatState = "suspended"
	// SeatLost tasks cannot go on: CUDA has lost what a process had on the device.
	SeatLost SeatState = "lost"
	// SeatIdle is shown for a suspended task that left since it did not use the
	// device: whether it wants it is not known. No state file has it.
	SeatIdle SeatState = "idle"
)

// SeatRules are what the operator has decided of devices whose tasks step aside for each
// other, and the program that moves them.
type SeatRules struct {
	Suspender Suspender `json:"suspender"`
	// HostMemoryMiB bounds what the tasks of all such devices may have on the host.
	HostMemoryMiB int64 `json:"host_memory_mib"`
	// HeadroomMiB is kept for each task beyond its measured memory.
	HeadroomMiB int64 `json:"headroom_mib"`
	// IdleMS, MinTurnMS and MaxWaitMS are in milliseconds: how long a task may leave the
	// device unused while another waits, the shortest turn, and how long a task waits
	// before it comes first.
	IdleMS    int64 `json:"idle_ms"`
	MinTurnMS int64 `json:"min_turn_ms"`
	MaxWaitMS int64 `json:"max_wait_ms"`
	// SwitchPercent is how much of the time may go into switching, MaxPriority the highest
	// priority that a job may give itself.
	SwitchPercent int64 `json:"switch_percent"`
	MaxPriority   int   `json:"max_priority"`
	// Unsuspendable says what happens to a task that CUDA cannot suspend: UnsuspendableKeep
	// or UnsuspendableRefuse; empty from releases that kept it.
	Unsuspendable string `json:"unsuspendable,omitempty"`
}

// A task that cannot be suspended keeps the device, or is ended with the reason.
const (
	UnsuspendableKeep   = "keep"
	UnsuspendableRefuse = "refuse"
)

// Seats are the seats of one device, as the task driver keeps them. One state file per
// device: what the driver was about to do when it died stands in it.
type Seats struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"`
	UUID    string `json:"uuid"`
	Seats   []Seat `json:"seats"`
}

// Seat is one task's place on a device whose tasks step aside for each other.
type Seat struct {
	LeaseID string    `json:"lease_id"`
	State   SeatState `json:"state"`
	// Since is when it came into the state, StartedAt when its lease was made.
	Since     time.Time `json:"since"`
	StartedAt time.Time `json:"started_at"`
	// Priority is the task's: the higher goes first.
	Priority int `json:"priority"`
	// DeclaredMiB is the memory that the job asks for, 0 where it does not say.
	DeclaredMiB int64 `json:"declared_mib,omitempty"`
	// MemoryMiB is its measured memory on the device, or the part of it on the host.
	MemoryMiB int64 `json:"memory_mib"`
	// LastUse is when it was last seen to compute or to take memory; zero where the
	// device does not tell.
	LastUse time.Time `json:"last_use,omitzero"`
	// Idle is true for a task that was suspended because it did not use the device:
	// whether it wants it again is not known. Trials counts the turns in a row in which
	// it did not.
	Idle   bool `json:"idle,omitempty"`
	Trials int  `json:"trials,omitempty"`
	// Yield is true for a resident that asked to step aside and has not left yet, Yielded
	// for one that left so. WantedAt is when a resident said last that it needs the device.
	Yield    bool      `json:"yield,omitempty"`
	Yielded  bool      `json:"yielded,omitempty"`
	WantedAt time.Time `json:"wanted_at,omitzero"`
	// Overdue marks a turn that came by waiting, not by priority.
	Overdue bool `json:"overdue,omitempty"`
	// For is the lease of the task that it stepped aside for, Reason why it is where it is, or
	// what hinders it.
	For    string `json:"for,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Fixed tasks cannot be suspended as they are.
	Fixed bool `json:"fixed,omitempty"`
	// Unknown is true while it is not known what state its processes are in since
	// something was done to them; UnknownSince is when that began.
	Unknown      bool      `json:"unknown,omitempty"`
	UnknownSince time.Time `json:"unknown_since,omitzero"`
	// NotBefore is when something that failed is tried again; Failures counts in a row.
	NotBefore time.Time `json:"not_before,omitzero"`
	Failures  int       `json:"failures,omitempty"`
	// MemoryLimit is the limit of the task's control group in bytes before it was raised
	// for the memory on the host; 0 is not raised.
	MemoryLimit int64 `json:"memory_limit,omitempty"`
	// Resumed is true once it came back from the host.
	Resumed bool `json:"resumed,omitempty"`
	// What moving it took the last time, in milliseconds.
	OutMS int64 `json:"out_ms,omitempty"`
	InMS  int64 `json:"in_ms,omitempty"`
	// Switches counts how often it left and came back, MovedMiB and SwitchMS what that
	// moved and took in all.
	Switches int64 `json:"switches,omitempty"`
	MovedMiB int64 `json:"moved_mib,omitempty"`
	SwitchMS int64 `json:"switch_ms,omitempty"`
}

// The priorities that a job may give a task with a seat, and those that its words mean.
const (
	MinSeatPriority         = 1
	MaxSeatPriority         = 100
	NormalSeatPriority      = 50
	BelowNormalSeatPriority = 25
)

// SeatPriorityOf reads the priority that a job gives a task with a seat: a word or a number;
// It is 0 for any other text.
func SeatPriorityOf(text string) int {
	switch text {
	case "normal":
		return NormalSeatPriority
	case "below_normal":
		return BelowNormalSeatPriority
	}
	if n, err := strconv.Atoi(text); err == nil && n >= MinSeatPriority && n <= MaxSeatPriority {
		return n
	}
	return 0
}

// CheckHostMemory reports whether the tasks with seats, with wanted added, could all be
// on the host at once: then none keeps its place because another has no way to leave.
func CheckHostMemory(wanted Lease, leases []Lease, boundMiB int64) error {
	sum, own := int64(0), wanted.seatMiB()
	for _, l := range leases {
		if l.ID != wanted.ID && l.Live() {
			sum += l.seatMiB()
		}
	}
	if own > boundMiB {
		return fmt.Errorf("the task may need %s of the host's memory while it is suspended, more than the %s that suspend.host_memory allows all tasks of this node: it can never start here; ask for less in the job (gpu { memory })",
			FormatMemory(own), FormatMemory(boundMiB))
	}
	if own > 0 && sum+own > boundMiB {
		return fmt.Errorf("the task may need %s of the host's memory while it is suspended, and %s of the %s that suspend.host_memory allows are promised to other tasks; say in the job how much GPU memory it takes (gpu { memory }), or wait until one of them ends",
			FormatMemory(own), FormatMemory(sum), FormatMemory(boundMiB))
	}
	return nil
}

func (l Lease) seatMiB() int64 {
	sum := int64(0)
	for _, h := range l.Holdings {
		sum += h.SeatMiB
	}
	return sum
}

// Where is the state as it is told to others than the driver.
func (s Seat) Where() SeatState {
	if s.State == SeatSuspended && s.Idle {
		return SeatIdle
	}
	return s.State
}

// Away reports whether the task waits for its turn.
func (s Seat) Away() bool { return s.State == SeatWaiting || s.State == SeatSuspended }

// Switching is the time to move the task out and in again, as it was last measured.
func (s Seat) Switching() time.Duration { return time.Duration(s.OutMS+s.InMS) * time.Millisecond }
