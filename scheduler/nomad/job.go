// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// Job is what placement needs of a job.
type Job struct {
	Index    uint64 // Nomad's job modify index
	Key      JobKey
	Type     string
	Priority int
	Version  uint64
	// Parent is the job that this one is a child of: periodic or parameterized.
	Parent string
	// Template jobs have children that Nomad makes of them, until they are stopped.
	Template bool
	// Scaled jobs are children that are held and let go by counts. Dispatched ones that are not are
	// not changed at all: Nomad does not let them be.
	Scaled, Dispatched bool
	// Stopped jobs, dead jobs and templates (periodic, parameterized) start
	// nothing themselves.
	Stopped bool
	// Ended jobs are dead without having been stopped: Nomad starts nothing of them again until they
	// are registered with a change.
	Ended  bool
	Groups []Group
	// GPU is whether any task asks for a GPU.
	GPU bool
}

// Marked reports whether a group bears the marks of an admission.
func (j *Job) Marked() bool {
	return slices.ContainsFunc(j.Groups, func(g Group) bool { return g.Was != nil })
}

// Group is a task group.
type Group struct {
	Name  string
	Count int
	// Queue is the gpu_queue that counts for its GPU tasks.
	Queue string
	// Key and Registered are those of the group's ask as Nomad has it, Was what
	// it holds of an admission: nil for none. Anyone can write that; whether the
	// service did is for its record to say.
	Key, Registered string
	Was             *admit.Earlier
	// Inherited is Registered as its parent's would be, for a child.
	Inherited string
	// Unscaled is set where no alloc of a child's group is to start yet: Count is how many will.
	Unscaled bool
	// Gang is set where the allocs start together or not at all.
	Gang bool
	// TimeLimit is how long the author says an alloc runs at most; 0: nothing is said.
	TimeLimit gpu.TimeLimit
	// FallbackAfter is how long it waits for GPUs until it is to run without; 0: for good.
	FallbackAfter gpu.TimeLimit
	// Stays is set where the migrate block has max_parallel = 0: no alloc of the
	// group is moved.
	Stays bool
	// Restarts is set where Nomad starts another alloc in place of one that failed.
	Restarts bool
	// Ask is the group's request, kept where it names MIG instances or bears no decision of the
	// service.
	Ask *admit.Ask
	// StopTime is how long an alloc may take to stop: its shutdown_delay and the longest
	// kill_timeout of its tasks, each with the delay of its own.
	StopTime time.Duration
	Tasks    []Task
}

// Task is a task of a group, as far as it concerns GPUs.
type Task struct {
	Name    string
	Request string // gpu of the meta, where it came in
	Devices []DeviceAsk
	// GuaranteeMilli and LimitMilli are what the containerd driver's gpu block
	// says; 0 is in proportion to the memory.
	GuaranteeMilli, LimitMilli int64
	// SeatPriority is what that block says of it; 0: nothing that is a priority of a seat.
	SeatPriority int
}

// DeviceAsk is a device block.
type DeviceAsk struct {
	Name  string
	Count int64
}

// NewJob translates Nomad's job.
func NewJob(j *api.Job, h Hardware) *Job {
	out := &Job{
		Index: deref(j.JobModifyIndex), Key: JobKey{deref(j.Namespace), deref(j.ID)}, Type: deref(j.Type),
		Priority: deref(j.Priority), Version: deref(j.Version), Parent: deref(j.ParentID), Template: (j.IsPeriodic() || j.IsParameterized()) && !deref(j.Stop), Dispatched: j.Dispatched,
		Stopped: deref(j.Stop) || deref(j.Status) == "dead" || j.IsPeriodic() || j.IsParameterized(),
		Ended:   deref(j.Status) == "dead" && !deref(j.Stop),
	}
	for _, g := range j.TaskGroups {
		group := Group{Name: deref(g.Name), Count: deref(g.Count), Stays: g.Migrate != nil && deref(g.Migrate.MaxParallel) == 0, Restarts: restarts(g.ReschedulePolicy)}
		for _, t := range g.Tasks {
			task := newTask(t)
			task.Request = inherited(admit.KeyGPU, t.Meta, g.Meta, j.Meta)
			if task.asks() && group.Queue == "" {
				group.Queue = inherited(admit.KeyQueue, t.Meta, g.Meta, j.Meta)
			}
			if task.asks() && group.TimeLimit == 0 {
				group.TimeLimit, _ = gpu.ParseTimeLimit(inherited(admit.KeyTimeLimit, t.Meta, g.Meta, j.Meta)) // around the service anything may be written
			}
			out.GPU = out.GPU || task.asks()
			group.StopTime = max(group.StopTime, t.ShutdownDelay+deref(t.KillTimeout))
			group.Tasks = append(group.Tasks, task)
		}
		group.TimeLimit = gpu.ShorterLimit(group.TimeLimit, deref(g.MaxRunDuration))
		group.StopTime += deref(g.ShutdownDelay)
		out.Groups = append(out.Groups, group)
	}
	if !out.GPU {
		out.Groups = nil
		return out
	}
	out.readMarks(j, h)
	return out
}

// restarts reports whether a policy has Nomad start another alloc in place of one that failed.
func restarts(p *api.ReschedulePolicy) bool {
	return p != nil && (deref(p.Unlimited) || deref(p.Attempts) > 0)
}

// inherited is a meta key as a task has it: its own level counts before the
// group's, and that before the job's, also where it is empty.
func inherited(key string, levels ...map[string]string) string {
	for _, meta := range levels {
		if value, found := meta[key]; found {
			return value
		}
	}
	return ""
}

// readMarks notes what the groups hold of an admission, as the service itself
// would read it.
func (j *Job) readMarks(from *api.Job, h Hardware) {
	body, err := json.Marshal(map[string]*api.Job{"Job": from})
	if err != nil {
		return
	}
	read, err := admit.Read(body, admit.Query{Namespace: j.Key.Namespace, Devices: slices.Sorted(maps.Values(h.ResourceNames)), Registered: true})
	if err != nil {
		return // it did not come through the service, which would have refused it
	}
	if read.HasHoldGroup() {
		j.Groups = slices.DeleteFunc(j.Groups, func(g Group) bool { return g.Name == admit.HoldGroup })
	}
	for i := range read.Asks {
		a := &read.Asks[i]
		j.Scaled = j.Scaled || a.Child
		if g := j.Group(a.Group); g != nil {
			g.Key, g.Registered, g.Was, g.Gang, g.FallbackAfter = a.Key(), a.Registered(), a.Was, a.Gang, a.FallbackAfter
			if a.WantsMIG() || a.Was == nil {
				kept := *a
				g.Ask = &kept
			}
			g.Count, g.Unscaled = a.Count, a.Child && g.Count == 0 && a.Count > 0
			if j.Parent != "" {
				g.Inherited = a.Inherited(j.Parent)
			}
		}
	}
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// Group returns a group by name, nil if there is none.
func (j *Job) Group(name string) *Group {
	for i := range j.Groups {
		if j.Groups[i].Name == name {
			return &j.Groups[i]
		}
	}
	return nil
}

// Task returns a task by name, nil if there is none.
func (g *Group) Task(name string) *Task {
	for i := range g.Tasks {
		if g.Tasks[i].Name == name {
			return &g.Tasks[i]
		}
	}
	return nil
}

func newTask(t *api.Task) Task {
	out := Task{Name: t.Name}
	if t.Resources != nil {
		for _, d := range t.Resources.Devices {
			out.Devices = append(out.Devices, DeviceAsk{Name: d.Name, Count: int64(deref(d.Count))})
		}
	}
	text, _ := json.Marshal(t.Config["gpu"]) // what cannot be encoded is read as none
	block := admit.ReadShare(text)
	out.SeatPriority = gpu.SeatPriorityOf(fmt.Sprint(block.Priority))
	compute, ok := admit.Milli(block.Compute)
	limit, _ := admit.Milli(block.Limit)
	if ok {
		out.GuaranteeMilli, out.LimitMilli = compute, limit
	}
	return out
}

// asks reports whether the task asks for devices or, by its meta, for a GPU.
func (t *Task) asks() bool { return len(t.Devices) > 0 || t.Request != "" }

// GPU reports whether a task of the group asks for a GPU.
func (g *Group) GPU() bool { return g.Text() != "" }

// Text is what the group's tasks ask for, as far as the job shows it.
func (g *Group) Text() string {
	var parts []string
	for _, t := range g.Tasks {
		if t.Request != "" {
			parts = append(parts, t.Request)
			continue
		}
		for _, d := range t.Devices {
			parts = append(parts, fmt.Sprintf("%d x %s", d.Count, d.Name))
		}
	}
	return strings.Join(parts, " + ")
}
