// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// fullJob has a group with several tasks, GPUs asked for in both ways, and one without.
func fullJob() *api.Job {
	blocks := func(names ...string) (r *api.Resources) {
		r = &api.Resources{}
		for i, name := range names {
			r.Devices = append(r.Devices, &api.RequestedDevice{Name: name, Count: ptr(uint64(i + 1))})
		}
		return r
	}
	return &api.Job{
		ID: ptr("j"), Namespace: ptr("ns"), Type: ptr("batch"), Priority: ptr(70), Version: ptr(uint64(3)), JobModifyIndex: ptr(uint64(5)), Status: ptr("running"), Stop: ptr(false),
		Meta: map[string]string{admit.KeyQueue: "of the job"},
		TaskGroups: []*api.TaskGroup{
			{Name: ptr("plain"), Count: ptr(4), Tasks: []*api.Task{{Name: "web", Driver: "docker"}}},
			{Name: ptr("g"), Count: ptr(2), ShutdownDelay: ptr(time.Second), Meta: map[string]string{admit.KeyTimeLimit: "2h"},
				ReschedulePolicy: &api.ReschedulePolicy{Attempts: ptr(1), Unlimited: ptr(false)},
				Tasks: []*api.Task{
					{Name: "side", Driver: "docker", KillTimeout: ptr(20 * time.Second)},
					{Name: "train", Driver: "docker", KillTimeout: ptr(9 * time.Second), ShutdownDelay: 2 * time.Second, Resources: blocks("nvidia/gpu", "nvidia/slice")},
					{Name: "infer", Driver: "containerd", Meta: map[string]string{admit.KeyGPU: "8G", admit.KeyQueue: "of the task", admit.KeyTimeLimit: "1h"},
						Config: map[string]any{"gpu": map[string]any{"compute": 300, "compute_limit": 800, "priority": "60"}}},
				}},
		},
	}
}

// admitted is a job of which an admission takes what it asks for.
func admitted() *api.Job {
	j := fullJob()
	j.TaskGroups = j.TaskGroups[1:]
	j.TaskGroups[0].Tasks = j.TaskGroups[0].Tasks[2:]
	return j
}

// marks are what an admission would read of a group.
func marks(g *Group) []any { return []any{g.Key, g.Registered, g.Was, g.Gang, g.FallbackAfter} }

// All that is known of a job, and nothing else: an admission would refuse it, and says nothing.
func TestAJobInFull(t *testing.T) {
	got := NewJob(fullJob(), Hardware{})
	want := &Job{
		Index: 5, Key: JobKey{"ns", "j"}, Type: "batch", Priority: 70, Version: 3, GPU: true,
		Groups: []Group{
			{Name: "plain", Count: 4, Tasks: []Task{{Name: "web"}}},
			{Name: "g", Count: 2, Queue: "of the job", TimeLimit: gpu.TimeLimit(2 * time.Hour), Restarts: true, StopTime: 21 * time.Second, Tasks: []Task{
				{Name: "side"}, {Name: "train", Devices: []DeviceAsk{{"nvidia/gpu", 1}, {"nvidia/slice", 2}}},
				{Name: "infer", Request: "8G", GuaranteeMilli: 300, LimitMilli: 800, SeatPriority: 60},
			}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	if text := got.Group("g").Text(); text != "1 x nvidia/gpu + 2 x nvidia/slice + 8G" || got.Group("plain").Text() != "" || !got.Group("g").GPU() || got.Group("plain").GPU() {
		t.Errorf("it asks for %q", text)
	}
	if got.Group("none") != nil || got.Group("plain").Task("none") != nil || got.Group("g").Task("infer").Request != "8G" {
		t.Error("a group or a task is not found by its name")
	}
	plain := fullJob()
	plain.TaskGroups = plain.TaskGroups[:1]
	if got := NewJob(plain, Hardware{}); got.GPU || got.Groups != nil || got.Marked() {
		t.Errorf("without GPUs it is %+v", got)
	}
}

// What keeps a job from starting anything itself, each alone.
func TestWhatStartsNothingItself(t *testing.T) {
	for name, row := range map[string]struct {
		change func(j *api.Job)
		want   bool
	}{
		"it runs":             {func(*api.Job) {}, false},
		"it waits":            {func(j *api.Job) { j.Status = ptr("pending") }, false},
		"it is stopped":       {func(j *api.Job) { j.Stop = ptr(true) }, true},
		"it is dead":          {func(j *api.Job) { j.Status = ptr("dead") }, true},
		"it is periodic":      {func(j *api.Job) { j.Periodic = &api.PeriodicConfig{} }, true},
		"it is parameterized": {func(j *api.Job) { j.ParameterizedJob = &api.ParameterizedJobConfig{} }, true},
		"it was dispatched":   {func(j *api.Job) { j.ParameterizedJob, j.Dispatched = &api.ParameterizedJobConfig{}, true }, false},
	} {
		j := fullJob()
		row.change(j)
		if got := NewJob(j, Hardware{}); got.Stopped != row.want || got.Dispatched != j.Dispatched {
			t.Errorf("%s: stopped %v, dispatched %v", name, got.Stopped, got.Dispatched)
		}
	}
}

// What a child holds of an admission is compared with what its parent would hold.
func TestAChildInheritsWhatItsParentHolds(t *testing.T) {
	parent := NewJob(admitted(), Hardware{}).Group("g")
	of := admitted()
	of.ID, of.ParentID, of.Dispatched = ptr("j/dispatch-1"), ptr("j"), true
	child := NewJob(of, Hardware{})
	if g := child.Group("g"); parent.Registered == "" || parent.Inherited != "" || child.Parent != "j" || !child.Dispatched || g.Inherited != parent.Registered || g.Registered == parent.Registered || g.Key == parent.Key {
		t.Errorf("the child of %s has %+v", child.Parent, g)
	}
}

// What an admission reads is what the job has, with the operator's names of devices; a job that it
// would refuse, which came around the service, is known without.
func TestWhatAnAdmissionReadsOfAJob(t *testing.T) {
	for name, row := range map[string]struct {
		meta    map[string]string
		device  string
		named   bool
		known   bool
		gang    bool
		patient time.Duration
	}{
		"alone":            {known: true},
		"a gang":           {meta: map[string]string{admit.KeyGang: "true"}, known: true, gang: true},
		"it waits an hour": {meta: map[string]string{"gpu_fallback": "cpu", "gpu_fallback_after": "1h"}, known: true, patient: time.Hour},
		"what is refused":  {meta: map[string]string{admit.KeyGang: "perhaps"}},
		"another device":   {device: "acme/accelerator"},
		"a device's name":  {device: "acme/accelerator", named: true, known: true},
	} {
		j := admitted()
		g := j.TaskGroups[0]
		maps.Copy(g.Meta, row.meta)
		h := Hardware{}
		if row.named {
			h.ResourceNames = map[string]string{"acme": "acme/accelerator"}
		}
		if row.device != "" {
			g.Tasks[0].Meta, g.Tasks[0].Resources = nil, &api.Resources{Devices: []*api.RequestedDevice{{Name: row.device, Count: ptr(uint64(1))}}}
		}
		got := NewJob(j, h).Group("g")
		if (got.Key != "") != row.known || (got.Registered != "") != row.known || got.Gang != row.gang || time.Duration(got.FallbackAfter) != row.patient {
			t.Errorf("%s: %q", name, marks(got))
		}
	}
}

// A guarantee that cannot be read is none, nor is the limit beside it; what stands beside in the
// block is read for itself.
func TestWhatTheGPUBlockSays(t *testing.T) {
	for name, row := range map[string]struct {
		block            any
		guarantee, limit int64
		priority         int
	}{
		"none":             {nil, 0, 0, 0},
		"both":             {map[string]any{"compute": 10, "compute_limit": 0.02}, 10, 20, 0},
		"a limit":          {map[string]any{"compute_limit": 2}, 0, 2, 0},
		"no guarantee":     {map[string]any{"compute": "much", "compute_limit": 2, "priority": "normal"}, 0, 0, gpu.NormalSeatPriority},
		"of several":       {[]map[string]any{{"compute": 10}, {"compute": 20}}, 10, 0, 0},
		"it is not a JSON": {func() {}, 0, 0, 0},
	} {
		task := newTask(&api.Task{Name: "t", Config: map[string]any{"gpu": row.block}})
		if task.GuaranteeMilli != row.guarantee || task.LimitMilli != row.limit || task.SeatPriority != row.priority {
			t.Errorf("%s: %+v", name, task)
		}
	}
}
