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
	// Preferred are the node IDs to try first, best first. The first
	// maxPreferred are written.
	Preferred []string
	// Tasks answer the Ask's tasks, in the same order.
	Tasks []TaskDecision
	// Hold is set when the group must wait.
	Hold *Hold
	// WithoutCanaries has a change that moves allocs take effect at once. Nomad
	// would first start canaries and wait for their promotion, and meanwhile
	// replace what is stopped by the version before the change.
	WithoutCanaries bool `json:",omitempty"`
	// Explanation says in a few lines why, for the person who submits.
	Explanation []string
}

// TaskDecision is what one task gets.
type TaskDecision struct {
	Task string
	// Devices are the device blocks. For a plain ask they answer the user's
	// blocks, in order: only Prefer is used, name and count stay the user's.
	Devices []Device
	// Share is for the driver: MemoryMiB where the task gets less than its
	// slices hold, GuaranteeMilli where it is not in proportion to the memory,
	// LimitMilli where a burst was asked for. Zero leaves a setting out.
	Share gpu.Share
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
}

// Hold keeps a group waiting: it is registered, and placed when the hold is
// taken away.
type Hold struct {
	// Kind is quota, priority or room.
	Kind string
	// Sentence says what must happen first; nomad job status shows it.
	Sentence string
}
