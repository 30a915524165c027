package nomad

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// Alloc is an allocation that holds resources of a node.
type Alloc struct {
	Index                   uint64 // Nomad's modify index
	ID, Namespace, Job      string
	Group, NodeID, NodeName string
	// Status is Nomad's client status; Stopping is set once Nomad wants the
	// alloc to end, although it may still be running.
	Status   string
	Stopping bool
	// Healthy is set once the alloc of a service job has been as well as its update
	// or migrate block wants, for as long.
	Healthy bool
	// Canary is set while the alloc waits for its promotion.
	Canary  bool
	Created time.Time

	CPUMHz, MemoryMiB int64
	Devices           []TaskDevices
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
		Index: s.ModifyIndex, ID: s.ID, Namespace: s.Namespace, Job: s.JobID, Group: s.TaskGroup,
		NodeID: s.NodeID, NodeName: s.NodeName, Status: s.ClientStatus,
		Stopping: s.DesiredStatus != api.AllocDesiredStatusRun, Created: time.Unix(0, s.CreateTime),
		Healthy: s.DeploymentStatus != nil && deref(s.DeploymentStatus.Healthy),
		Canary:  s.DeploymentStatus != nil && s.DeploymentStatus.Canary,
	}
	a.resources(s.AllocatedResources)
	return a
}

// eventAlloc is the part of an alloc event that is used.
type eventAlloc struct {
	ID, Namespace, JobID, TaskGroup, NodeID, NodeName string
	ClientStatus, DesiredStatus                       string
	DeploymentStatus                                  *api.AllocDeploymentStatus
	CreateTime                                        int64
	ModifyIndex                                       uint64
	AllocatedResources                                *api.AllocatedResources
}

func (e *eventAlloc) alloc() *Alloc {
	return NewAlloc(&api.AllocationListStub{
		ID: e.ID, Namespace: e.Namespace, JobID: e.JobID, TaskGroup: e.TaskGroup, NodeID: e.NodeID, NodeName: e.NodeName,
		ClientStatus: e.ClientStatus, DesiredStatus: e.DesiredStatus, DeploymentStatus: e.DeploymentStatus, CreateTime: e.CreateTime,
		ModifyIndex: e.ModifyIndex, AllocatedResources: e.AllocatedResources,
	})
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
