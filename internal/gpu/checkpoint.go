// SPDX-License-Identifier: MPL-2.0

package gpu

import "slices"

// The task driver moves the GPU memory of a task's processes into the host's memory,
// and back, through a program of the device plugin (GPUState.Suspender): it hands a
// CheckpointRequest over as JSON on standard input and reads a CheckpointAnswer. The
// program may hang, since the NVIDIA driver's calls can, and may be killed at any time.

// CheckpointAction is what a request asks for.
type CheckpointAction string

const (
	// CheckpointLook asks for the states of processes and changes nothing.
	CheckpointLook CheckpointAction = "look"
	// CheckpointSuspend locks all processes and moves their GPU memory to the host. Where
	// one cannot be locked, none is suspended.
	CheckpointSuspend CheckpointAction = "suspend"
	// CheckpointResume brings the memory of all processes back and lets them go on, if
	// the device has room for it.
	CheckpointResume CheckpointAction = "resume"
	// CheckpointUnlock lets processes go on that are locked and have their memory: what
	// a program that was killed has left.
	CheckpointUnlock CheckpointAction = "unlock"
)

// CheckpointRequest is what the program is asked.
type CheckpointRequest struct {
	Version int              `json:"version"`
	Action  CheckpointAction `json:"action"`
	// UUID is the device, PIDs the task's processes by the host's numbers: also those
	// that do not use CUDA.
	UUID string `json:"uuid"`
	PIDs []int  `json:"pids"`
	// Beside are the processes of other tasks on the device: they are locked while
	// room is looked for and taken, so that none of them takes it.
	Beside []int `json:"beside,omitempty"`
	// RoomMiB must be free before anything is brought back.
	RoomMiB int64 `json:"room_mib,omitempty"`
	// Lock is a file that the program holds while it works: there is one at a time for a
	// device, also when who asked for it died.
	Lock string `json:"lock,omitempty"`
	// MostMiB is how much memory may go to the host; 0 is not bounded.
	MostMiB int64 `json:"most_mib,omitempty"`
	// LockMS is how long one process may take to be locked, in milliseconds.
	LockMS int64 `json:"lock_ms,omitempty"`
}

// CheckpointState is where a process is.
type CheckpointState string

const (
	// ProcessRunning processes use CUDA as they like.
	ProcessRunning CheckpointState = "running"
	// ProcessLocked processes have their GPU memory, and wait in their next CUDA call.
	ProcessLocked CheckpointState = "locked"
	// ProcessCheckpointed processes have their GPU memory on the host.
	ProcessCheckpointed CheckpointState = "checkpointed"
	// ProcessFailed processes are lost: CUDA brings them back no more.
	ProcessFailed CheckpointState = "failed"
)

// CheckpointProcess is one process that uses CUDA.
type CheckpointProcess struct {
	PID   int             `json:"pid"`
	State CheckpointState `json:"state"`
}

// CheckpointFailure says what kind of failure an answer tells of.
type CheckpointFailure string

const (
	// FailureUnsupported processes can never be suspended as they are: managed memory,
	// memory shared with other processes, an old driver.
	FailureUnsupported CheckpointFailure = "unsupported"
	// FailureNoRoom means that the device has no room now. Nothing was tried.
	FailureNoRoom CheckpointFailure = "no-room"
	// FailureGrown means that the processes hold more than may go to the host.
	FailureGrown CheckpointFailure = "grown"
	// FailureBusy means that a process could not be locked in time.
	FailureBusy CheckpointFailure = "busy"
	// FailureCUDA is any other failure.
	FailureCUDA CheckpointFailure = "cuda"
)

// CheckpointAnswer is what came of a request. Processes are those of PIDs that use CUDA,
// as they are now.
type CheckpointAnswer struct {
	Version   int                 `json:"version"`
	Processes []CheckpointProcess `json:"processes"`
	// Failure is empty where all was done; Message says what went wrong, for a person.
	Failure CheckpointFailure `json:"failure,omitempty"`
	Message string            `json:"message,omitempty"`
	// FreeMiB is the device's free memory when room was looked for, HeldMiB the memory that the
	// processes held when they were locked, to be suspended.
	FreeMiB int64 `json:"free_mib,omitempty"`
	HeldMiB int64 `json:"held_mib,omitempty"`
	// Stuck are processes that could not be locked.
	Stuck []int `json:"stuck,omitempty"`
	// Unread are processes of the task whose state CUDA does not tell.
	Unread []int `json:"unread,omitempty"`
}

// Any reports whether a process is in one of the states.
func (a CheckpointAnswer) Any(states ...CheckpointState) bool {
	return slices.ContainsFunc(a.Processes, func(p CheckpointProcess) bool { return slices.Contains(states, p.State) })
}

// Suspender is a program, with its first arguments, that answers CheckpointRequests.
type Suspender struct {
	Command []string `json:"command"`
	// Env is added to the program's environment.
	Env []string `json:"env,omitempty"`
}
