// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Request is what one task asks for. The GPU part has one of five shapes:
//
//	GPUs=0                              CPU only
//	GPUs=n, Whole                       n whole GPUs:          2, 2(A100)
//	GPUs=n, ShareMilli                  a fraction of each:    0.5
//	GPUs=n, MemoryMiBPerGPU             memory, compute in proportion: 8G
//	GPUs=n, MemoryMiBPerGPU+ShareMilli  both, apart:           8G,0.5
//	GPUs=n, Shared                      a turn on a shared GPU
//
// A MIG instance is asked for with Profile and one of the shapes above (Whole
// for the instance itself).
type Request struct {
	ID        string // becomes the Usage's ID; unique among placed work
	Job       string
	Namespace string
	Queue     string // quota that pays; empty: none
	Priority  int    // higher goes first

	CPUMHz    int64
	MemoryMiB int64 // of the host

	GPUs            int
	Whole           bool
	Shared          bool
	ShareMilli      int64 // guaranteed compute per GPU, 1..999
	MemoryMiBPerGPU int64 // GPU memory per GPU; 0: in proportion to ShareMilli
	Expected        int64 // compute per GPU that it is expected to use, where that is known to be more; 0: the guarantee
	MinMemoryMiB    int64 // with Whole or Shared: the card must have this much
	Cover           bool  // hold as many slices as the share of compute is, where memory needs fewer
	Close           bool  // several GPUs should reach each other by NVLink

	Vendor      string
	Models      []string                // any of; NVML name, label style or short type
	Ordered     bool                    // Models are in order of preference: the first that has room
	Not         []string                // none of these models
	Profile     string                  // MIG profile
	Sharing     gpu.Sharing             // only GPUs with this sharing; empty: any
	Mode        gpu.Mode                // only GPUs handed out in this mode; empty: any
	Datacenters []string                // any of; empty: all
	Pools       []string                // any of; empty: all
	Nodes       []string                // node IDs, any of; empty: all
	Constraints []constraint.Constraint // on the node

	// Except are node IDs that Place leaves out of all these, for this once: it remembers nothing of them.
	Except map[string]bool

	// Device and Conditions say which device groups will do, as a device block
	// does: its name (type, vendor/type or vendor/type/name) and its constraints.
	// Instances is how many of Nomad's instances of each GPU it takes, in modes
	// slice and shared; 0: as many as the share needs.
	Device     string
	Conditions []constraint.Constraint
	Instances  int64

	// Beside says whom it may sit with where tasks step aside for each other, and
	// SeatPriority which priority its seat will have, as far as the GPU allows it; 0: the
	// normal one.
	Beside       Beside
	SeatPriority int

	Policy Policy        // PolicyDefault: the planner's
	MinRun time.Duration // once started, not evicted earlier than this

	// SpareGangs leaves out victims that would take others with them; OnlyIdle all that are
	// not to be reclaimed, and of those leaves out none for its priority.
	SpareGangs bool
	OnlyIdle   bool

	Most quota.Charge // that a GPU may cost; 0 is no bound
}

// ErrRequest is wrapped by every error about a request that makes no sense on
// any cluster.
var ErrRequest = errors.New("invalid request")

// Validate reports what contradicts itself in the request.
func (r *Request) Validate() error {
	if why := r.Fault(); why != "" {
		return fmt.Errorf("%w %q: %s", ErrRequest, r.ID, why)
	}
	return nil
}

// Fault says what contradicts itself in the request, in words that whoever
// wrote it understands; empty when nothing does.
func (r *Request) Fault() string {
	switch {
	case r.CPUMHz < 0 || r.MemoryMiB < 0 || r.MemoryMiBPerGPU < 0 || r.MinMemoryMiB < 0:
		return "negative CPU or memory"
	case r.GPUs < 0 || r.GPUs > cluster.MaxGPUs:
		return fmt.Sprintf("%d GPUs on one node, and no more than %d are planned for", r.GPUs, cluster.MaxGPUs)
	case r.GPUs == 0 && (r.Whole || r.Shared || r.ShareMilli != 0 || r.MemoryMiBPerGPU != 0):
		return "a share of zero GPUs"
	case r.GPUs > 0 && r.Whole && (r.Shared || r.ShareMilli != 0 || r.MemoryMiBPerGPU != 0):
		return "a whole GPU has no share; use MinMemoryMiB for the size of the card"
	case r.Shared && (r.ShareMilli != 0 || r.MemoryMiBPerGPU != 0):
		return "a turn on a shared GPU promises neither compute nor memory"
	case r.GPUs > 0 && !r.Whole && !r.Shared && r.ShareMilli == 0 && r.MemoryMiBPerGPU == 0 && r.Instances == 0:
		return "GPUs without whole, shared, share or memory"
	case r.ShareMilli < 0 || r.ShareMilli > 999:
		return fmt.Sprintf("share %d, want 1 to 999 milli", r.ShareMilli)
	case r.Expected < 0 || r.Expected > cluster.GPUMilli:
		return fmt.Sprintf("expected use %d, want 0 to 1000 milli", r.Expected)
	case r.Instances < 0 || r.Instances > 0 && r.Whole:
		return fmt.Sprintf("%d instances of each GPU", r.Instances)
	}
	for _, c := range slices.Concat(r.Constraints, r.Conditions) {
		if !c.Known() {
			return fmt.Sprintf("a constraint with operator %q, which Nomad does not have", c.Operand)
		}
	}
	return ""
}

// Ask sets the GPU part of the request from the grammar that users write.
func (r *Request) Ask(g gpu.Request) {
	r.GPUs, r.Whole, r.Shared = 1, false, false
	r.ShareMilli, r.MemoryMiBPerGPU = g.Milli, g.MemoryMiB
	r.Vendor, r.Models, r.Not = g.Vendor, g.Models(), g.Excluded()
	r.Ordered = len(r.Models) > 1
	if g.Kind == gpu.KindCount {
		r.GPUs, r.Whole = g.Count, true
	}
}
