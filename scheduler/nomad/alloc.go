// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Alloc is an allocation that holds resources of a node.
type Alloc struct {
	Index                   uint64 // Nomad's modify index
	ID, Namespace, Job      string
	Group, NodeID, NodeName string
	// Version is the version of its job that an alloc is of, where it was listed. Events do not say
	// that: Placed is the index at which Nomad placed it, or brought it up to a version, last.
	Version, Placed uint64
	// Status is Nomad's client status; Stopping is set once Nomad wants the
	// alloc to end, although it may still be running.
	Status   string
	Stopping bool
	// Failed is set where the alloc ended by a failure, and Nomad has started none in its place
	// yet; Returns once Nomad has said that it will, at a later time.
	Failed, Returns bool
	// Healthy is set once the alloc of a service job has been as well as its update
	// or migrate block wants, for as long.
	Healthy bool
	// Canary is set while the alloc waits for its promotion.
	Canary  bool
	Created time.Time
	// Began is when the last of its tasks with devices did; zero until all have, and
	// where that is not known, as of allocs that were listed.
	Began time.Time
	// Ended is when the last task of an alloc ended that holds nothing any more.
	Ended time.Time

	CPUMHz, MemoryMiB int64
	Devices           []TaskDevices
	// Saved is when each task said last that its work is on disk, as far as Nomad still
	// has the event: it keeps a task's last ten.
	Saved map[string]time.Time
	// Compute is what compute a task has made its guarantee since it was started, in milli.
	// Started are the tasks of which Nomad still has the event of their last start: those
	// not in Compute have the guarantee of their job.
	Compute map[string]int64
	Started map[string]bool
}

// TaskDevices is what one task of an alloc holds of one device group.
type TaskDevices struct {
	Task  string
	Group string   // vendor/type/name
	IDs   []string // instance IDs
}

// JobKey names a job.
type JobKey struct{ Namespace, ID string }

// String is the key for people: namespace/job.
func (k JobKey) String() string { return k.Namespace + "/" + k.ID }

// Key returns the alloc's job.
func (a *Alloc) Key() JobKey { return JobKey{a.Namespace, a.Job} }

// NewAlloc translates an alloc of a list.
func NewAlloc(s *api.AllocationListStub) *Alloc {
	a := &Alloc{
		Index: s.ModifyIndex, ID: s.ID, Namespace: s.Namespace, Job: s.JobID, Group: s.TaskGroup, Version: s.JobVersion,
		NodeID: s.NodeID, NodeName: s.NodeName, Status: s.ClientStatus,
		Stopping: s.DesiredStatus != api.AllocDesiredStatusRun, Created: time.Unix(0, s.CreateTime),
		Healthy: s.DeploymentStatus != nil && deref(s.DeploymentStatus.Healthy),
		Canary:  s.DeploymentStatus != nil && s.DeploymentStatus.Canary,
	}
	a.resources(s.AllocatedResources)
	for task, t := range s.TaskStates {
		a.noteSaved(task, t)
	}
	a.Failed = s.ClientStatus == api.AllocClientStatusFailed && !a.Stopping && s.NextAllocation == ""
	a.Returns = a.Failed && s.FollowupEvalID != ""
	a.Began = a.beginning(s.TaskStates)
	if !a.Holds() {
		a.Ended = endOf(s)
	}
	return a
}

// noteCompute reads what the driver tells of a task's guarantee, in the order of events: a
// start brings back that of its job.
func (a *Alloc) noteCompute(task string, e *api.TaskEvent) {
	if e.Type == api.TaskStarted {
		if a.Started == nil {
			a.Started = map[string]bool{}
		}
		a.Started[task] = true
		delete(a.Compute, task)
	}
	milli, err := strconv.ParseInt(e.Details[gpu.ComputeDetail], 10, 64)
	if err != nil || e.Type != api.TaskDriverMessage || milli < 1 || milli > gpu.MilliPerGPU {
		return
	}
	if a.Compute == nil {
		a.Compute = map[string]int64{}
	}
	a.Compute[task] = milli
}

// noteSaved reads a task's own word from its events, which the task driver has written.
func (a *Alloc) noteSaved(task string, t *api.TaskState) {
	for _, e := range t.Events {
		a.noteCompute(task, e)
		at, err := time.Parse(time.RFC3339Nano, e.Details[gpu.SavedDetail])
		if err != nil || e.Type != api.TaskDriverMessage || !at.After(a.Saved[task]) {
			continue
		}
		if a.Saved == nil {
			a.Saved = map[string]time.Time{}
		}
		a.Saved[task] = at
	}
}

// KeepSaid takes over what tasks said before, where Nomad has the event no more.
func (a *Alloc) KeepSaid(before *Alloc) {
	for task, milli := range before.Compute {
		if _, later := a.Compute[task]; !later && !a.Started[task] {
			if a.Compute == nil {
				a.Compute = map[string]int64{}
			}
			a.Compute[task] = milli
		}
	}
	for task, at := range before.Saved {
		if at.After(a.Saved[task]) {
			if a.Saved == nil {
				a.Saved = map[string]time.Time{}
			}
			a.Saved[task] = at
		}
	}
}

// SavedAt is since when an eviction would lose the alloc's work: of its tasks with GPUs,
// the one that has saved longest ago. Zero: one of them has said nothing.
func (a *Alloc) SavedAt() time.Time {
	var first time.Time
	for i, d := range a.Devices {
		if at := a.Saved[d.Task]; i == 0 || at.Before(first) {
			first = at
		}
	}
	return first
}

// beginning is when the last of the tasks with devices began.
func (a *Alloc) beginning(tasks map[string]*api.TaskState) (start time.Time) {
	for _, d := range a.Devices {
		t := tasks[d.Task]
		if t == nil || t.StartedAt.IsZero() {
			return time.Time{}
		}
		if t.StartedAt.After(start) {
			start = t.StartedAt
		}
	}
	return start
}

// endOf is when the last task of an alloc ended, or else when the alloc was last changed.
// When the tasks of a lost alloc ended is not known.
func endOf(s *api.AllocationListStub) (end time.Time) {
	for _, t := range s.TaskStates {
		if t.FinishedAt.After(end) && s.ClientStatus != api.AllocClientStatusLost {
			end = t.FinishedAt
		}
	}
	if end.IsZero() && s.ModifyTime > 0 {
		end = time.Unix(0, s.ModifyTime)
	}
	return end
}

// eventAlloc is the part of an alloc event that is used.
type eventAlloc struct {
	ID, Namespace, JobID, TaskGroup, NodeID, NodeName string
	ClientStatus, DesiredStatus                       string
	FollowupEvalID, NextAllocation                    string
	DeploymentStatus                                  *api.AllocDeploymentStatus
	CreateTime, ModifyTime                            int64
	TaskStates                                        map[string]*api.TaskState
	ModifyIndex                                       uint64
	AllocModifyIndex                                  uint64
	AllocatedResources                                *api.AllocatedResources
}

func (e *eventAlloc) alloc() *Alloc {
	a := NewAlloc(&api.AllocationListStub{
		ID: e.ID, Namespace: e.Namespace, JobID: e.JobID, TaskGroup: e.TaskGroup, NodeID: e.NodeID, NodeName: e.NodeName,
		ClientStatus: e.ClientStatus, DesiredStatus: e.DesiredStatus, DeploymentStatus: e.DeploymentStatus, CreateTime: e.CreateTime, FollowupEvalID: e.FollowupEvalID, NextAllocation: e.NextAllocation,
		ModifyIndex: e.ModifyIndex, ModifyTime: e.ModifyTime, TaskStates: e.TaskStates, AllocatedResources: e.AllocatedResources,
	})
	a.Placed = e.AllocModifyIndex
	return a
}

// OfEarlier reports whether an alloc is of an earlier version of its job than this one.
func (a *Alloc) OfEarlier(j *Job) bool {
	if a.Placed > 0 {
		return a.Placed < j.Index
	}
	return a.Version < j.Version
}

// Holds reports whether the alloc occupies its node: Nomad frees the resources
// when the client has ended the alloc, not when a server wants it to end.
func (a *Alloc) Holds() bool {
	switch a.Status {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return false
	}
	return true
}

func (a *Alloc) resources(r *api.AllocatedResources) {
	if r == nil {
		return
	}
	for task, t := range r.Tasks {
		a.CPUMHz += t.Cpu.CpuShares
		a.MemoryMiB += t.Memory.MemoryMB
		for _, d := range t.Devices {
			a.Devices = append(a.Devices, TaskDevices{Task: task, Group: d.Vendor + "/" + d.Type + "/" + d.Name, IDs: d.DeviceIDs})
		}
	}
}
