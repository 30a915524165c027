// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

// Meta keys that a user writes on a task, a group or a job.
const (
	KeyGPU         = "gpu"             // "8G,0.5": see gpu.Request
	KeyLimit       = "gpu_limit"       // "0.8": the most compute, at least the guarantee
	KeyPolicy      = "gpu_policy"      // SPREAD, PACK or BALANCED
	KeySharing     = "gpu_sharing"     // mps, timeslice, hami, suspend or none: selects GPUs
	KeyQueue       = "gpu_queue"       // which quota pays
	KeyFramework   = "gpu_framework"   // pytorch or tensorflow; more keys in package framework
	KeyReservation = "gpu_reservation" // a reservation's ID, to claim it
	KeyGang        = "gpu_gang"        // "true": all allocs start together or none
	KeyGangMin     = "gpu_gang_min"    // "2": the fewest that start
	KeyTimeLimit   = "gpu_time_limit"  // "2h30m": how long an alloc runs at most, for planning
	// KeyFallback is "cpu" where the group runs without a GPU once it has waited for one
	// as long as KeyFallbackAfter says.
	KeyFallback      = "gpu_fallback"
	KeyFallbackAfter = "gpu_fallback_after"
)

// Ask is what one task group wants of the cluster's GPUs.
type Ask struct {
	Namespace string
	JobID     string
	JobType   string // service, batch, system or sysbatch
	Priority  int
	Group     string
	// Count is how many allocs the group shall have, as the job says.
	Count int
	// Later is true for periodic and parameterized jobs: nothing is placed on
	// registration, so no node and no GPU is worth preferring.
	Later bool
	// Canaries is how many allocs of a new version start beside the old one, and wait
	// for their promotion.
	Canaries int `json:",omitempty"`

	NodePool    string
	Datacenters []string // may hold globs, as in the job
	// CPUMHz and MemoryMiB are the host's, of all tasks of the group together;
	// Cores are reserved cores, which Nomad counts in place of MHz.
	CPUMHz    int64
	Cores     int64
	MemoryMiB int64
	// Constraints are the job's, the group's and its tasks', as the user wrote
	// them: those of an earlier admission are left out.
	Constraints []Constraint

	// Drivers and Volumes are what Nomad asks of a node without a constraint: the drivers of
	// all tasks, by name, and what the group's volume blocks name.
	Drivers []string `json:",omitempty"`
	Volumes []Volume `json:",omitempty"`

	// Distinct is which allocs take a node each, by a constraint distinct_hosts or a
	// static port: those of the group, or those of the job; empty: none.
	Distinct Distinct `json:",omitempty"`

	Queue       string
	Policy      string // "", SPREAD, PACK or BALANCED
	Sharing     gpu.Sharing
	Reservation string
	// Gang is set where the group's allocs start together or not at all, with
	// those of the job's other gang groups; so does every distributed training.
	// GangMin is how many are enough; 0: all. RanksMost is how many allocs an
	// elastic training takes at most: no more can join without a restart; 0 where
	// the number is fixed.
	Gang      bool `json:",omitempty"`
	GangMin   int  `json:",omitempty"`
	RanksMost int  `json:",omitempty"`
	// TimeLimit is how long the author says an alloc runs at most; 0: nothing is said.
	// It is planned with, not enforced.
	TimeLimit gpu.TimeLimit `json:",omitempty"`
	// FallbackAfter is how long the group waits for GPUs until it is registered without;
	// 0: it waits for good.
	FallbackAfter gpu.TimeLimit `json:",omitempty"`

	Tasks []TaskAsk // those that need GPUs, in the job's order
	// Child is set for jobs that Nomad made of another one: they are held and let go as one, and
	// nothing else of them can be changed.
	Child bool `json:",omitempty"`
	// Was is what an earlier admission left in the job; nil if there was none.
	Was *Earlier
}

// Volume is one that a group mounts.
type Volume struct {
	Type     string // host or csi
	Source   string
	ReadOnly bool `json:",omitempty"`
	// PerAlloc volumes are one for each alloc: Source with its number in brackets.
	PerAlloc bool `json:",omitempty"`
}

// Distinct says which allocs do not share a node.
type Distinct string

const (
	DistinctInGroup Distinct = "group"
	DistinctInJob   Distinct = "job"
)

// TaskAsk is what one task wants. Exactly one of Request and Devices is set.
type TaskAsk struct {
	Task   string
	Driver string
	// Request is parsed from meta; its Kind is zero when Devices is set.
	Request gpu.Request
	// Devices are the GPU device blocks that the user wrote, in order.
	Devices []DeviceAsk
	// LimitMilli is the compute ceiling; 0 where none is asked for.
	LimitMilli int64
	// SeatPriority is what the author of device blocks gives the task's seat; 0: nothing. It
	// decides nothing that is written.
	SeatPriority int `json:"-"`
	// ComputeMilli is the guarantee that the author of device blocks asks for in the
	// driver's gpu block; 0: in proportion to the slices.
	ComputeMilli int64 `json:",omitempty"`
	// Framework is nil where the task names none.
	Framework *framework.Options
}

// DeviceAsk is a device block as plain Nomad knows it.
type DeviceAsk struct {
	// Index is the block's place among all device blocks of the task.
	Index       int
	Name        string // nvidia/slice, or vendor/type/name, or type
	Count       int64
	Constraints []Constraint
	Affinities  []Affinity
	// Alternative is set where the block leaves Nomad the choice among several
	// (first_available), of which this is the first for a GPU. Or are the others for
	// GPUs, in order.
	Alternative bool        `json:",omitempty"`
	Or          []DeviceAsk `json:",omitempty"`
}

// Constraint is Nomad's, on a node or on a device.
type Constraint struct {
	LTarget, RTarget, Operand string
}

// Affinity is Nomad's.
type Affinity struct {
	LTarget, RTarget, Operand string
	Weight                    int
}

// Earlier is what the group holds from an earlier admission.
type Earlier struct {
	// Candidates and Preferred are node IDs, Preferred best first.
	Candidates, Preferred []string
	// Slots is how many allocs each candidate may get; 0: no number is set.
	Slots int
	// Bounds are those of the group's queue that bear a mark.
	Bounds []Constraint
	// Hold is the kind and the sentence by which the group waits; empty when it
	// does not.
	Hold string
	// Canaries is the author's number of canaries where an admission set it
	// aside.
	Canaries *int
	// Tasks are the device blocks and shares of the ask's tasks, in order.
	Tasks []TaskDecision
	// Ranks is how many allocs a distributed training was told to have: "4", or
	// "2:4"; empty where there is none.
	Ranks string
	// Groups are the preferred device groups, by task and device block.
	Groups map[string][]string
}

// Together is how many of the group's allocs start together at least; 0 where
// each may start alone.
func (a *Ask) Together() int {
	switch {
	case !a.Gang:
		return 0
	case a.GangMin > 0:
		return min(a.GangMin, a.Count)
	}
	return a.Count
}

// Plain reports whether the task asks with device blocks.
func (t TaskAsk) Plain() bool { return len(t.Devices) > 0 }

// SharingMIG is a choice of KeySharing beside those of GPUs: a MIG instance that is large
// enough, of a size that GPUs have or can be cut into.
const SharingMIG gpu.Sharing = "mig"

// WantsMIG reports whether MIG instances may serve the group.
func (a *Ask) WantsMIG() bool {
	return a.Sharing == SharingMIG || slices.ContainsFunc(a.Tasks, TaskAsk.Plain)
}

// Profile is that of the MIG instances which the block names; empty where it names others, or
// any.
func (d DeviceAsk) Profile() string {
	vendor, rest, _ := strings.Cut(d.Name, "/")
	kind, profile, _ := strings.Cut(rest, "/")
	if vendor != "nvidia" || kind != gpu.TypeMIG {
		return ""
	}
	return profile
}

// String is the ask as a person would write it: "8G,0.5", or the device blocks.
func (t TaskAsk) String() string {
	if !t.Plain() {
		return t.Request.String()
	}
	parts := make([]string, len(t.Devices))
	for i, d := range t.Devices {
		parts[i] = fmt.Sprintf("%d x %s", d.Count, d.Name)
		for _, or := range d.Or {
			parts[i] += fmt.Sprintf(" or %d x %s", or.Count, or.Name)
		}
	}
	return strings.Join(parts, " + ")
}

// String is what the group's tasks ask for, in order.
func (a Ask) String() string {
	parts := make([]string, len(a.Tasks))
	for i, t := range a.Tasks {
		parts[i] = t.String()
	}
	return strings.Join(parts, " + ")
}

// Key names everything in the ask that decides what is written inside the
// tasks. While it stays the same, the device blocks must stay the same too:
// Nomad replaces every alloc whose device block changes. The count, the
// constraints and the host's resources are not part of it.
func (a Ask) Key() string {
	text, err := json.Marshal(struct {
		Namespace, JobID, Group string
		Sharing                 gpu.Sharing
		Reservation             string
		Tasks                   []TaskAsk
	}{a.Namespace, a.JobID, a.Group, a.Sharing, a.Reservation, a.Tasks})
	if err != nil { // strings and integers always marshal
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
