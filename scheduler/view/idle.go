// SPDX-License-Identifier: MPL-2.0

package view

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// IdleReport lists the tasks that hold GPUs and do not use them.
type IdleReport struct {
	At time.Time `json:"at"`
	// Idle is idle work, the longest unused first.
	Idle []Idle `json:"idle"`
	// Milli and MemoryMiB are what all of it would free.
	Milli     int64 `json:"milli"`
	MemoryMiB int64 `json:"memory_mib"`
	// Unmeasured is how many tasks hold a part of a GPU whose use is not known.
	Unmeasured int `json:"unmeasured"`
}

// Idle is a task that holds a part of a GPU and does not use it.
type Idle struct {
	NodeName  string `json:"node_name"`
	UUID      string `json:"uuid"`
	Device    string `json:"device"` // Nomad's device group
	Namespace string `json:"namespace"`
	JobID     string `json:"job_id"`
	Group     string `json:"group"`
	Task      string `json:"task"`
	AllocID   string `json:"alloc_id"`
	Queue     string `json:"queue,omitempty"`
	Priority  int    `json:"priority"`
	// Since is when it was first measured to use nothing; UsedMemoryMiB is the memory that
	// it has nevertheless, Unmeasured where that is not known.
	Since         time.Time `json:"since"`
	UsedMemoryMiB int64     `json:"used_memory_mib"`
	// Instances, Milli and MemoryMiB are the capacity it would free: of a GPU that tasks take turns
	// on, the part of its seats.
	Instances int   `json:"instances"`
	Milli     int64 `json:"milli"`
	MemoryMiB int64 `json:"memory_mib"`
	// Action is what its queue has decided: report, suspend or evict; empty where it has
	// not been idle for as long as its queue allows.
	Action string `json:"action,omitempty"`
}

// IdleReport lists the tasks that have not used their GPUs for so long, or, for 0, for as
// long as their queues allow.
func (c *Cluster) IdleReport(after time.Duration) IdleReport {
	r := IdleReport{At: c.At, Idle: []Idle{}}
	for i := range c.Nodes {
		for k := range c.Nodes[i].GPUs {
			g := &c.Nodes[i].GPUs[k]
			for h := range g.Holders {
				holder := &g.Holders[h]
				switch {
				case holder.Use == nil || holder.Use.Milli == Unmeasured && holder.Use.UnusedSince.IsZero() && holder.Use.Seat == "":
					r.Unmeasured++
				case after == 0 && holder.Use.Idle, after > 0 && !holder.Use.UnusedSince.IsZero() && c.At.Sub(holder.Use.UnusedSince) >= after:
					r.add(c.Nodes[i].Name, g, holder)
				}
			}
		}
	}
	slices.SortStableFunc(r.Idle, func(a, b Idle) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.NodeName, b.NodeName), strings.Compare(a.AllocID, b.AllocID))
	})
	return r
}

func (r *IdleReport) add(node string, g *GPU, h *Holder) {
	one := Idle{
		NodeName: node, UUID: g.UUID, Device: g.Group, Namespace: h.Namespace, JobID: h.JobID, Group: h.Group, Task: h.Task, AllocID: h.AllocID,
		Queue: h.Queue, Priority: h.Priority, Since: h.Use.UnusedSince, UsedMemoryMiB: h.Use.MemoryMiB, Instances: h.Instances,
		Milli: h.GuaranteeMilli, MemoryMiB: h.MemoryMiB, Action: h.Use.Action,
	}
	if g.Mode == "shared" && len(g.Instances) > 0 {
		all := int64(len(g.Instances))
		one.Milli, one.MemoryMiB = int64(h.Instances)*1000/all, int64(h.Instances)*g.MemoryMiB/all
	}
	r.Idle = append(r.Idle, one)
	r.Milli += one.Milli
	r.MemoryMiB += one.MemoryMiB
}
