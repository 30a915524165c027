// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A group that may run on the CPU is registered without its GPUs once it has waited for them
// long enough. It bears no mark then and asks for no GPU, so that nothing here sees it any
// more; its tasks are told by their environment and their meta.

const (
	// KeyFallenFrom is the meta key in which a task that fell back finds its request.
	KeyFallenFrom = "gpu_fallback_from"
	onCPU         = "cpu"
)

// fallbackEnv is what a task that fell back is told. Images may ask NVIDIA's container
// runtime for all GPUs, which no quota would pay for.
var fallbackEnv = []struct{ name, value string }{
	{"CUDA_VISIBLE_DEVICES", "-1"}, {"GPU_FALLBACK", onCPU}, {"NVIDIA_VISIBLE_DEVICES", "void"},
}

// readFallback reads after how long a task falls back; 0: never.
func readFallback(m meta) (gpu.TimeLimit, error) {
	if err := oneOf(KeyFallback, m.merged[KeyFallback], []string{onCPU}); err != nil {
		return 0, err
	}
	text := m.merged[KeyFallbackAfter]
	if m.merged[KeyFallback] == "" {
		if m.own[KeyFallbackAfter] != "" {
			return 0, fmt.Errorf("%s = %q has no effect without %s = %q", KeyFallbackAfter, text, KeyFallback, onCPU)
		}
		return 0, nil
	}
	after, err := gpu.ParseFallbackAfter(text)
	if err != nil {
		return 0, fmt.Errorf("%s = %w", KeyFallbackAfter, err)
	}
	return after, nil
}

// checkFallback refuses to let a group fall back that could not run without its GPUs.
func (g *group) checkFallback(ask *Ask, parameterized bool) error {
	if ask.FallbackAfter == 0 {
		return nil
	}
	why := ""
	switch {
	case ask.JobType == "system" || ask.JobType == "sysbatch":
		why = fmt.Sprintf("a %s job starts on every node that can run it, and waits for no GPU", ask.JobType)
	case parameterized:
		why = "Nomad does not let dispatched jobs be changed"
	case ask.Later:
		why = "Nomad would forget whose child a job is that was changed so"
	case ask.Reservation != "":
		why = fmt.Sprintf("%s holds a GPU for it", KeyReservation)
	}
	if why != "" {
		return refuse(g.name, ask.Tasks[0].Task, fmt.Errorf("%s: %s; remove %s", KeyFallback, why, KeyFallback))
	}
	for _, a := range ask.Tasks {
		at := slices.IndexFunc(g.tasks, func(t task) bool { return t.header.Name == a.Task })
		switch {
		case a.Framework != nil:
			why = fmt.Sprintf("%s sets the task up for its share of a GPU", KeyFramework)
		case at >= 0:
			why = g.tasks[at].needsGPU(a.Plain())
		}
		if why != "" {
			return refuse(g.name, a.Task, fmt.Errorf("%s: the task cannot run without a GPU: %s; remove one of the two", KeyFallback, why))
		}
	}
	return nil
}

// gpuPaths are in what a task's configuration names of GPUs by itself.
var gpuPaths = []string{"/dev/nvidia", "/dev/dri", "/dev/kfd", "/dev/davinci", "nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu"}

// needsGPU says what in a task's configuration works with a GPU only; empty: nothing. In a
// task with device blocks of its author's the driver's gpu block is his as well.
func (t task) needsGPU(plain bool) string {
	config, err := parseMap(t.object.get("Config"))
	if err != nil {
		return ""
	}
	var runtime string
	switch {
	case plain && !isNull(config.get("gpu")):
		return "its config has a gpu block"
	case json.Unmarshal(config.get("runtime"), &runtime) == nil && strings.HasPrefix(runtime, "nvidia"):
		return fmt.Sprintf("its config has runtime = %q", runtime)
	}
	for _, key := range []string{"devices", "volumes", "mounts", "mount"} {
		for _, path := range gpuPaths {
			if strings.Contains(string(config.get(key)), path) {
				return fmt.Sprintf("%s of its config names %s", key, path)
			}
		}
	}
	return ""
}

// checkGangFallback refuses a gang that would fall back in part.
func (j *Job) checkGangFallback() error {
	at := slices.IndexFunc(j.Asks, func(a Ask) bool { return a.Gang })
	for i := range j.Asks {
		a := &j.Asks[i]
		if first := &j.Asks[max(at, 0)]; a.Gang && a.FallbackAfter != first.FallbackAfter {
			return refuse(a.Group, a.Tasks[0].Task, fmt.Errorf("%s and %s differ from those of group %q, with which it starts together", KeyFallback, KeyFallbackAfter, first.Group))
		}
	}
	return nil
}

// withoutGPU takes out of a group, whose constraints are written already, all that asks for
// GPUs.
func (g group) withoutGPU(o *object, ask Ask) (json.RawMessage, error) {
	tasks, err := parseArray(o.get("Tasks"))
	if err != nil {
		return nil, err
	}
	for i, t := range g.tasks {
		at := slices.IndexFunc(ask.Tasks, func(a TaskAsk) bool { return a.Task == t.header.Name })
		if at < 0 {
			continue
		}
		if tasks[i], err = t.withoutGPU(&ask.Tasks[at]); err != nil {
			return nil, fmt.Errorf("task %q: %w", t.header.Name, err)
		}
	}
	o.set("Tasks", rawArray(tasks))
	return o.raw(), nil
}

func (t task) withoutGPU(a *TaskAsk) (json.RawMessage, error) {
	o := t.object.clone()
	resources := t.resources.clone()
	var others []json.RawMessage
	for i, raw := range t.devices {
		if !slices.ContainsFunc(t.blocks, func(b DeviceAsk) bool { return b.Index == i }) {
			others = append(others, raw)
		}
	}
	resources.set("Devices", rawArray(others))
	o.set("Resources", resources.raw())
	if err := t.tellFallback(&o, a); err != nil {
		return nil, err
	}
	if t.header.Driver != gpu.DriverName {
		return o.raw(), nil
	}
	config, err := parseMap(o.get("Config"))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	config.remove("gpu")
	o.set("Config", config.raw())
	return o.raw(), nil
}

// tellFallback tells a task that it runs without a GPU, and keeps its meta from asking for
// one.
func (t task) tellFallback(o *object, a *TaskAsk) error {
	meta, err := parseMap(o.get("Meta"))
	if err != nil {
		return fmt.Errorf("meta: %w", err)
	}
	for _, key := range keys {
		meta.remove(key)
	}
	meta.set(KeyGPU, encode(""))
	meta.set(KeyFallenFrom, encode(a.String()))
	o.set("Meta", meta.raw())
	env, err := parseMap(o.get("Env"))
	if err != nil {
		return fmt.Errorf("env: %w", err)
	}
	for _, e := range fallbackEnv {
		env.set(e.name, encode(e.value))
	}
	o.set("Env", env.raw())
	return nil
}
