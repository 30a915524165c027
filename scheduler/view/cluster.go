// SPDX-License-Identifier: MPL-2.0

package view

import (
	"fmt"
	"time"
)

// Cluster is everything the service knows at one moment.
type Cluster struct {
	// At is when the picture was taken; Index is the Nomad index that it
	// contains at least.
	At    time.Time `json:"at"`
	Index uint64    `json:"index"`
	// Synced is when the service last heard from Nomad. A picture that is
	// older than a minute is served, and says so.
	Synced time.Time `json:"synced"`
	// Leader is the address of the replica that decides; empty while there is
	// none. Leading is whether this picture comes from it.
	Leader  string `json:"leader"`
	Leading bool   `json:"leading"`
	DryRun  bool   `json:"dry_run"`
	// Ledger is set while this replica's ledger cannot be written.
	Ledger *LedgerOutage `json:"ledger_outage,omitempty"`
	// Trouble is what of the configuration cannot be used, and stays as it was.
	Trouble []string `json:"configuration_problems,omitempty"`
	// BatchQueues are Nomad's own of node pools that have GPUs, by pool.
	BatchQueues []BatchQueue `json:"batch_queues,omitempty"`

	// MinRunS is for how many seconds work of no queue is not evicted once it has started.
	MinRunS int64 `json:"min_run_s"`

	Nodes   []Node     `json:"nodes"`          // by name, then ID
	Next    string     `json:"next,omitempty"` // of a page: where the next one begins
	Queues  []Queue    `json:"queues"`         // by name
	Pending []Pending  `json:"pending"`        // in the order in which they are tried
	OnCPU   []FellBack `json:"on_cpu"`         // by namespace, job and group
	// Returning is by namespace, job and group.
	Returning []Returning `json:"started_again"`
	Decisions []Decision  `json:"decisions"` // newest first
	Holds     []Hold      `json:"holds"`     // by ID
	Events    []Event     `json:"events"`    // newest first
}

// BatchQueue is a queue of Nomad's own for the batch jobs of a node pool. New GPU jobs are
// refused there.
type BatchQueue struct {
	Pool string `json:"node_pool"`
	Type string `json:"type"`
	// Jobs stand in it, some of them from before it was set.
	Jobs int `json:"jobs"`
}

// Warning is a sentence for the operator.
func (q BatchQueue) Warning() string {
	return fmt.Sprintf("node pool %s has a batch_queue of Nomad's (%s) with %d jobs: new GPU batch jobs are refused there, and one that waits stops those behind it. nomad queue jobs -node-pool %s lists them", q.Pool, q.Type, q.Jobs, q.Pool)
}

// LedgerOutage is a time in which the ledger cannot be written. Decisions go on.
type LedgerOutage struct {
	Since time.Time `json:"since"`
	// Waiting records are in memory, and are stored when the ledger takes them. Dropped ones
	// were given up because there were too many.
	Waiting int `json:"waiting_records"`
	Dropped int `json:"dropped_records"`
}

// Queue is a team's quota and what it uses.
type Queue struct {
	Name       string   `json:"name"`
	Parent     string   `json:"parent,omitempty"`
	Namespaces []string `json:"namespaces,omitempty"`
	// AllowNamespaces are further ones whose jobs may name the queue, Models the only ones
	// that its work runs on; none: all. MaxPriority bounds the priority of its work.
	AllowNamespaces []string `json:"allow_namespaces,omitempty"`
	Models          []string `json:"models,omitempty"`
	MaxPriority     int      `json:"max_priority"`
	// MinRunS is for how many seconds its work is not evicted once it has started.
	MinRunS int64 `json:"min_run_s"`
	// QuotaMilli is the guaranteed amount in GPU milli, UsedMilli what allocs hold. PromisedMilli is promised
	// beside it, to admitted work that has not started and to reservations.
	QuotaMilli int64 `json:"quota_milli"`
	UsedMilli  int64 `json:"used_milli"`

	PromisedMilli int64 `json:"promised_milli,omitempty"`
	// MaxMilli is what borrowing may reach; 0: no bound but the cluster.
	MaxMilli int64 `json:"max_milli"`
	// BorrowedMilli is the part of both above the quota.
	BorrowedMilli int64 `json:"borrowed_milli"`
	// The same of GPU memory; a quota of 0 is none.
	QuotaMemoryMiB    int64 `json:"quota_memory_mib,omitempty"`
	UsedMemoryMiB     int64 `json:"used_memory_mib"`
	MaxMemoryMiB      int64 `json:"max_memory_mib,omitempty"`
	BorrowedMemoryMiB int64 `json:"borrowed_memory_mib,omitempty"`
	// DirectMilli is the part of UsedMilli that jobs hold which came around the
	// service.
	DirectMilli int64 `json:"direct_milli,omitempty"`
	// OwedMilli is kept, beside UsedMilli, for what was admitted and may start at any time: it
	// waits for room, or failed and is started again.
	OwedMilli int64 `json:"owed_milli,omitempty"`
	// Above says by how much the queue is above its limit, and why that stays so; empty
	// where it is not.
	Above   string `json:"above,omitempty"`
	Pending int    `json:"pending"`
}

// Reasons why work waits. A held job carries one of them in the name of the
// constraint that holds it.
const (
	WaitsForQuota    = "quota"
	WaitsForPriority = "priority"
	WaitsForRoom     = "room"
	// WaitsForHeadroom is for work that leaves the last places for large tasks to these.
	WaitsForHeadroom = "headroom"
)

// Pending is a task group that waits for GPUs.
type Pending struct {
	Namespace string    `json:"namespace"`
	JobID     string    `json:"job_id"`
	Group     string    `json:"group"`
	Missing   int       `json:"missing"` // allocs that do not run yet
	Milli     int64     `json:"milli"`   // thousandths of GPUs that these ask for
	Queue     string    `json:"queue,omitempty"`
	Priority  int       `json:"priority"`
	Ask       string    `json:"ask"` // "8G,0.5"
	Since     time.Time `json:"since"`
	// Kind is one of the reasons above; Reason is a sentence for its owner.
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
	// Start is when it is likely to start; nil where nothing is estimated yet.
	Start *Start `json:"start,omitempty"`
	// Fits is what would start now in its place; nil where nothing is known yet, or can be
	// said: of what runs in part, or asks in several device blocks or groups at once.
	Fits *Fits `json:"would_fit,omitempty"`
	// Note says what was tried for it in vain.
	Note string `json:"note,omitempty"`
	// Direct work was submitted around the service.
	Direct bool `json:"direct,omitempty"`
}

// FellBack is a task group that waited for GPUs as long as it said, and runs without.
type FellBack struct {
	Namespace string    `json:"namespace"`
	JobID     string    `json:"job_id"`
	Group     string    `json:"group"`
	Ask       string    `json:"ask"` // what it asked for: "8G,0.5"
	Since     time.Time `json:"since"`
	// Text says how long it waited, and what takes it back to a GPU.
	Text string `json:"text"`
}

// Returning is a task group of which something failed that Nomad starts again by itself.
type Returning struct {
	Namespace string `json:"namespace"`
	JobID     string `json:"job_id"`
	Group     string `json:"group"`
	Allocs    int    `json:"allocs"` // that are started again
	// Milli are the thousandths of GPUs that Queue keeps for them meanwhile.
	Milli int64     `json:"milli"`
	Queue string    `json:"queue,omitempty"`
	Ask   string    `json:"ask"`   // of one: "8G,0.5"
	Since time.Time `json:"since"` // when one was seen to have failed
	// Text names the room that is kept for them, and until when.
	Text string `json:"text"`
}

// Hold is GPU room that is kept free: a reservation.
type Hold struct {
	ID        string    `json:"id"`
	Namespace string    `json:"namespace"`
	Queue     string    `json:"queue,omitempty"`
	Owner     string    `json:"owner,omitempty"`
	NodeID    string    `json:"node_id"`
	NodeName  string    `json:"node_name"`
	GPUs      []string  `json:"gpus"` // UUIDs
	Milli     int64     `json:"milli"`
	MemoryMiB int64     `json:"memory_mib"`
	ExpiresAt time.Time `json:"expires_at"`
	// ClaimedBy is the namespace/job that uses the hold; empty until then.
	ClaimedBy string `json:"claimed_by,omitempty"`
}

// Event is something that the service did to running or waiting work.
type Event struct {
	At time.Time `json:"at"`
	// Kind is evict, reclaim, idle, suspend, move, hold, release, fallback, recut or error.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	JobID     string `json:"job_id"`
	AllocID   string `json:"alloc_id,omitempty"`
	// For is the namespace/job that the room was made for.
	For string `json:"for,omitempty"`
	// Text says in one sentence who, for whom and why.
	Text   string `json:"text"`
	DryRun bool   `json:"dry_run,omitempty"`
	// Failed is set if an earlier event says that it was done, but it could not be: Text says why.
	Failed bool `json:"failed,omitempty"`
}

// Same reports whether two are one event: what is not stored of a time is no difference.
func (e Event) Same(other Event) bool {
	at, otherAt := e.At, other.At
	e.At, other.At = time.Time{}, time.Time{}
	return e == other && at.Equal(otherAt)
}
