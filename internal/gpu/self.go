// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// DriverName is what jobs call the task driver.
const DriverName = "containerd"

// A task asks about its own share, and states its needs, through a socket that
// the driver shows to that task alone: one request per connection, one line of JSON, and
// one line of JSON in answer. Which task asks is known from the socket, never from the request.
const (
	// SelfDir is the directory in a container that holds all of it, read-only.
	SelfDir     = "/run/nomad-gpu"
	SelfSocket  = SelfDir + "/self.sock"
	SelfBinDir  = SelfDir + "/bin"
	SelfProgram = SelfBinDir + "/nomad-gpu-self"
	// EnvSelfSocket tells a task's programs where the socket is.
	EnvSelfSocket = "GPU_SELF_SOCKET"
	// SelfVersion is the version of requests and answers.
	SelfVersion = 1
	// MaxSelfRequest and MaxSelfAnswer bound a line, in bytes.
	MaxSelfRequest = 4 << 10
	MaxSelfAnswer  = 64 << 10
)

// SelfAction is what a task asks for.
type SelfAction string

const (
	// SelfStatusAction changes nothing.
	SelfStatusAction SelfAction = "status"
	// SelfYield has a task with a seat leave its GPU now, SelfWant brings it back.
	SelfYield SelfAction = "yield"
	SelfWant  SelfAction = "want"
	// SelfSaved says that the task's work is on disk as of now.
	SelfSaved SelfAction = "saved"
	// SelfResizeAction changes the task's share.
	SelfResizeAction SelfAction = "resize"
)

// SavedDetail is the detail of a task's event that says when the task's work was on disk,
// as RFC 3339: Nomad carries events from the driver to the placement service.
const SavedDetail = "gpu_saved_at"

// ComputeDetail is the detail of a task's event that says what compute the task has made
// its guarantee, in milli.
const ComputeDetail = "gpu_compute_milli"

// selfActions are all of them, in the order of the help text.
var selfActions = []SelfAction{SelfStatusAction, SelfYield, SelfWant, SelfSaved, SelfResizeAction}

// SelfRequest is what a task asks for.
type SelfRequest struct {
	Version int        `json:"version"`
	Action  SelfAction `json:"action"`
	// Resize is set for SelfResizeAction alone.
	Resize *SelfResize `json:"resize,omitempty"`
}

// SelfResize is what a task wants to change of its share; nil stays.
type SelfResize struct {
	// ComputeMilli is the guarantee, LimitMilli the most that the task may use.
	ComputeMilli *int64 `json:"compute_milli,omitempty"`
	LimitMilli   *int64 `json:"limit_milli,omitempty"`
	// MemoryLimitMiB is the most memory that it may have while others leave it.
	MemoryLimitMiB *int64 `json:"memory_limit_mib,omitempty"`
}

// SelfAnswer is the driver's answer. Error says why nothing was done, with the value,
// the place and the valid values; Message says what the driver did. Status is the task's present state.
type SelfAnswer struct {
	Version int         `json:"version"`
	Error   string      `json:"error,omitempty"`
	Message string      `json:"message,omitempty"`
	Status  *SelfStatus `json:"status,omitempty"`
}

// SelfStatus is what a task may know of its GPUs.
type SelfStatus struct {
	GPUs []SelfGPU `json:"gpus"`
}

// SelfGPU is one GPU of a task.
type SelfGPU struct {
	UUID    string  `json:"uuid"`
	Model   string  `json:"model,omitempty"`
	Mode    Mode    `json:"mode"`
	Sharing Sharing `json:"sharing,omitempty"`
	// Whole is true where the task shares the GPU with no other.
	Whole bool `json:"whole,omitempty"`
	// DeviceMiB is the memory of the GPU, Share what the task has of it.
	DeviceMiB int64 `json:"device_mib,omitempty"`
	Share     Share `json:"share"`
	// Use is the last measurement; nil where there is none.
	Use       *SelfUse      `json:"use,omitempty"`
	Neighbors SelfNeighbors `json:"neighbors"`
	// Seat is set where tasks step aside for each other.
	Seat *SelfSeat `json:"seat,omitempty"`
}

// SelfUse is what all processes of the task use together.
type SelfUse struct {
	MeasuredAt time.Time `json:"measured_at"`
	MemoryMiB  int64     `json:"memory_mib"`
	// Milli is the compute used, -1 where the device does not tell.
	Milli     int64 `json:"milli"`
	Processes int   `json:"processes"`
}

// SelfNeighbors is the load of the other tasks on the GPU, together and without names.
type SelfNeighbors struct {
	Tasks          int   `json:"tasks"`
	GuaranteeMilli int64 `json:"guarantee_milli"`
	MemoryMiB      int64 `json:"memory_mib"`
	// Milli is the compute that they use, -1 where the device does not tell.
	Milli int64 `json:"milli"`
}

// SelfSeat is where a task with a seat is, and when that changes.
type SelfSeat struct {
	State    SeatState `json:"state"`
	Since    time.Time `json:"since"`
	Priority int       `json:"priority"`
	// Waiting is how many other tasks wait for the GPU, Ahead how many of them come
	// before this one if nothing changes.
	Waiting int `json:"waiting"`
	Ahead   int `json:"ahead"`
	// Idle is true for a task that left without wanting the GPU back.
	Idle bool `json:"idle,omitempty"`
	// Asked is what the task asked for last and was not done yet.
	Asked SelfAction `json:"asked,omitempty"`
	// Fixed tasks cannot be suspended as they are.
	Fixed bool `json:"fixed,omitempty"`
	// NextTurn is the latest time at which a task that waits comes before all others.
	NextTurn time.Time `json:"next_turn,omitzero"`
}

// ParseSelfRequest reads one request, which has one meaning: a field that occurs twice or in
// another case is a mistake, and so is an unknown one, since a later release's request must
// not be half understood.
func ParseSelfRequest(line []byte) (SelfRequest, error) {
	var r SelfRequest
	if len(line) > MaxSelfRequest {
		return r, fmt.Errorf("request: %d bytes are not valid (at most %d)", len(line), MaxSelfRequest)
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	err := checkKeys(line)
	if err == nil {
		err = decoder.Decode(&r)
	}
	if err != nil {
		return r, fmt.Errorf("request: %.80q is not valid (one line of JSON such as {\"version\":1,\"action\":\"status\"}): %w", line, err)
	}
	if len(bytes.TrimSpace(line[decoder.InputOffset():])) > 0 {
		return r, fmt.Errorf("request: %.80q is not valid (one line of JSON and nothing after it)", line)
	}
	return r, r.check()
}

func (r SelfRequest) check() error {
	if r.Version != SelfVersion {
		return fmt.Errorf("request: version %d is not valid (this driver knows %d)", r.Version, SelfVersion)
	}
	resizes := r.Resize != nil && *r.Resize != SelfResize{}
	for _, known := range selfActions {
		if r.Action != known {
			continue
		}
		if resizes != (r.Action == SelfResizeAction) {
			return fmt.Errorf("request: action %q is not valid (resize names compute_milli, limit_milli or memory_limit_mib, and no other action does)", r.Action)
		}
		return nil
	}
	return fmt.Errorf("request: action %.40q is not valid (one of %v)", r.Action, selfActions)
}
