package nomad

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Job is what placement needs of a job.
type Job struct {
	Index    uint64 // Nomad's job modify index
	Key      JobKey
	Type     string
	Priority int
	Version  uint64
	// Stopped jobs, dead jobs and templates (periodic, parameterized) start
	// nothing themselves.
	Stopped bool
	Queue   string // gpu_queue of the job's meta
	Groups  []Group
	// GPU is whether any task asks for a GPU, Admitted whether the job came
	// through the service.
	GPU, Admitted bool
}

// Group is a task group.
type Group struct {
	Name  string
	Count int
	Queue string
	// Stays is set where the migrate block has max_parallel = 0: no alloc of the
	// group is moved.
	Stays bool
	Tasks []Task
}

// Task is a task of a group, as far as it concerns GPUs.
type Task struct {
	Name    string
	Request string // gpu of the meta, where it came in
	Devices []DeviceAsk
	// GuaranteeMilli and LimitMilli are what the containerd driver's gpu block
	// says; 0 is in proportion to the memory.
	GuaranteeMilli, LimitMilli int64
}

// DeviceAsk is a device block.
type DeviceAsk struct {
	Name  string
	Count int64
}

// NewJob translates Nomad's job.
func NewJob(j *api.Job) *Job {
	out := &Job{
		Index: deref(j.JobModifyIndex), Key: JobKey{deref(j.Namespace), deref(j.ID)}, Type: deref(j.Type),
		Priority: deref(j.Priority), Version: deref(j.Version), Queue: j.Meta["gpu_queue"],
		Stopped: deref(j.Stop) || deref(j.Status) == "dead" || j.IsPeriodic() || j.IsParameterized(),
	}
	for _, g := range j.TaskGroups {
		out.Admitted = out.Admitted || admitted(g)
		group := Group{Name: deref(g.Name), Count: deref(g.Count), Queue: g.Meta["gpu_queue"], Stays: g.Migrate != nil && deref(g.Migrate.MaxParallel) == 0}
		for _, t := range g.Tasks {
			task := newTask(t)
			for _, meta := range []map[string]string{g.Meta, j.Meta} {
				if task.Request == "" {
					task.Request = meta["gpu"]
				}
			}
			out.GPU = out.GPU || len(task.Devices) > 0 || task.Request != ""
			group.Tasks = append(group.Tasks, task)
		}
		out.Groups = append(out.Groups, group)
	}
	if !out.GPU {
		out.Groups = nil
	}
	return out
}

// admitted recognises what an admission writes into a group.
func admitted(g *api.TaskGroup) bool {
	return slices.ContainsFunc(g.Constraints, func(c *api.Constraint) bool {
		return strings.HasPrefix(c.RTarget, "nomad-gpu") || strings.HasPrefix(c.LTarget, "nomad-gpu")
	})
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
	out := Task{Name: t.Name, Request: t.Meta["gpu"]}
	if t.Resources != nil {
		for _, d := range t.Resources.Devices {
			out.Devices = append(out.Devices, DeviceAsk{Name: d.Name, Count: int64(deref(d.Count))})
		}
	}
	out.GuaranteeMilli, out.LimitMilli = driverShare(t.Config["gpu"])
	return out
}

// driverShare reads the gpu block of the driver's configuration. Nomad keeps a
// block as an object or as a list with one object.
func driverShare(block any) (guarantee, limit int64) {
	text, err := json.Marshal(block)
	if err != nil {
		return 0, 0
	}
	type share struct {
		Compute int64 `json:"compute"`
		Limit   int64 `json:"compute_limit"`
	}
	var one share
	if json.Unmarshal(text, &one) != nil {
		var list []share
		if json.Unmarshal(text, &list) != nil || len(list) == 0 {
			return 0, 0
		}
		one = list[0]
	}
	if one.Compute < 0 || one.Compute > gpu.MilliPerGPU {
		return 0, 0
	}
	return one.Compute, one.Limit
}

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
