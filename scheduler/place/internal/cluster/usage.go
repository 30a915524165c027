// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"math"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Take is what a usage holds of one GPU.
type Take struct {
	GPU      int   // position in Node.GPUs
	Milli    int64 // guaranteed compute
	Slices   int64 // slices of memory, in mode slice
	Replicas int64 // turns, in mode shared
	// Expected is the compute that it is expected to use, in milli, where that is known to be more
	// than it is guaranteed; 0 otherwise.
	Expected int64 `json:"-"`
}

// Usage is work that holds part of a node: an alloc, or a reservation.
type Usage struct {
	ID        string
	NodeID    string
	Job       string
	Namespace string
	Queue     string
	Priority  int
	CPUMHz    int64
	MemoryMiB int64
	Takes     []Take // in ascending GPU order
	Gang      string // of work that starts and ends together; empty: it stands alone

	Start     time.Time     // zero: not started yet
	MinRun    time.Duration // protected from eviction until Start+MinRun
	WorkSaved time.Duration // run time that an eviction would not lose (checkpoint)
	Repeats   time.Duration `json:"-"` // run time of completed allocations that would be run again as well
	Stops     time.Duration `json:"-"` // how long it takes to end: its room is of no use until then
	Pinned    bool          // never a victim, never moved
	Spent     bool          `json:"-"` // no victim for work of its own queue
	Ends      bool          `json:"-"` // by itself or already, as the work of batch jobs does

	// Idle is set once it has not used its GPUs for so long that its seats make room for
	// others, Reclaim where it may be evicted then for whatever waits.
	Idle    bool `json:"-"`
	Reclaim bool `json:"-"`
	// SeatPriority is the priority of its seats, as far as GPUs allow it; 0: the normal one.
	SeatPriority int `json:"-"`

	Claim quota.Claim // what its queue pays; set while booked
}

// Charge is what the usage costs its queue; nothing while it is not booked.
func (u *Usage) Charge() quota.Charge { return u.Claim.Charge }

// Protected reports whether the usage may not be evicted at now.
func (u *Usage) Protected(now time.Time) bool {
	return u.Pinned || (u.MinRun > 0 && now.Before(u.Start.Add(u.MinRun)))
}

// LostMilliSeconds is the work an eviction at now throws away: GPU milli held,
// times seconds run since the last save, by what would be run again with it, and until it has ended. CPU-only work counts as 1 milli, so
// that longer runs still cost more.
func (u *Usage) LostMilliSeconds(now time.Time) int64 {
	if u.Start.IsZero() || !now.After(u.Start) {
		return 0
	}
	run := max(0, now.Sub(u.Start)-u.WorkSaved) + u.Repeats + u.Stops
	return max(1, u.Milli()) * int64(run/time.Second)
}

// started is the Unix second of the start; for work that has not started, none is
// later.
func (u *Usage) started() int64 {
	if u.Start.IsZero() {
		return math.MaxInt64
	}
	return u.Start.Unix()
}

// Milli is the guaranteed compute over all GPUs.
func (u *Usage) Milli() int64 {
	var sum int64
	for _, t := range u.Takes {
		sum += t.Milli
	}
	return sum
}
