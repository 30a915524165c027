// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

// Decision is the answer to one Ask.
type Decision struct {
	Group string
	// Candidates are the IDs of all nodes that may ever run the group; empty
	// means every node. Keep it wide: what is not in it cannot take over when
	// nodes die.
	Candidates []string
	// Slots is how many allocs of the group each candidate may get; 0: as many as it has room for.
	Slots int `json:",omitempty"`
	// Bounds say on which nodes the group's queue lets it run: conditions on the
	// datacenter and the node pool, and the operator's own.
	Bounds []Constraint `json:",omitempty"`
	// Preferred are the node IDs to try first, best first. The first
	// maxPreferred are written.
	Preferred []string
	// Tasks answer the Ask's tasks, in the same order.
	Tasks []TaskDecision
	// Hold is set when the group must wait.
	Hold *Hold
	// OnCPU has the group registered without GPUs: it has waited for them long enough.
	OnCPU bool `json:",omitempty"`
	// WithoutCanaries has a change that moves allocs take effect at once. Nomad
	// would first start canaries and wait for their promotion, and meanwhile
	// replace what is stopped by the version before the change.
	WithoutCanaries bool `json:",omitempty"`
	// Priority is what counts of the job's, where its queue bounds it; 0: all of it.
	Priority int `json:"-"`
	// Explanation says in a few lines why, for the person who submits.
	Explanation []string
	// Outcome is what comes of the ask: placed, registered, waits or held, as package
	// view has them. It is of this answer and not recorded.
	Outcome string `json:"-"`
}

// TaskDecision is what one task gets.
type TaskDecision struct {
	Task string
	// Devices are the device blocks. For a plain ask they answer the user's
	// blocks, in order: only Prefer is used, name and count stay the user's.
	Devices []Device
	// Bound keeps the user's own device blocks on the models that their queue may use; nil
	// where it may use any, and for blocks that the service writes.
	Bound *Constraint `json:",omitempty"`
	// Share is for the driver: MemoryMiB where the task gets less than its
	// slices hold, GuaranteeMilli where it is not in proportion to the memory,
	// LimitMilli where a burst was asked for. Zero leaves a setting out.
	Share gpu.Share
	// SeatPriority is what its seat has, where tasks step aside for each other; 0: nothing is
	// written.
	SeatPriority int `json:",omitempty"`
	// Holds is what the task then has of its GPUs, for its framework.
	Holds framework.Share
}

// Device is one device block.
type Device struct {
	Name  string // "nvidia/slice"
	Count int64
	// Prefer is the device group to prefer, as ${device.model} has it:
	// "A100/0". Empty for none.
	Prefer      string
	Constraints []Constraint
	// Rank are the affinities that prefer models in order, as they are before they are
	// marked.
	Rank []Affinity `json:",omitempty"`
}

// Hold keeps a group waiting: it is registered, and placed when the hold is
// taken away.
type Hold struct {
	// Kind is quota, priority or room.
	Kind string
	// Sentence says what must happen first; nomad job status shows it.
	Sentence string
}
