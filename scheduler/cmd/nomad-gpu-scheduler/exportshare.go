// SPDX-License-Identifier: MPL-2.0

package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// taken is how many GPUs an alloc holds parts of, and the largest parts. The group as it was
// registered says what compute goes with slices, and which models would have done; nil: that
// is not known.
func (e *exporter) taken(a *nomad.Alloc, n *nomad.Node, g *nomad.Group) share {
	held := map[int]share{}
	for _, d := range a.Devices {
		instances := map[int]int64{}
		for _, id := range d.IDs {
			if at, ok := n.Slot(id); ok {
				instances[at.GPU]++
			}
		}
		guarantee := guaranteeOf(a, g, d.Task)
		for at, count := range instances {
			part := held[at]
			compute, memory := parts(&n.Plan.GPUs[at], count, guarantee)
			part.milli, part.memoryMilli = min(gpu.MilliPerGPU, part.milli+compute), min(gpu.MilliPerGPU, part.memoryMilli+memory)
			held[at] = part
		}
	}
	out := share{gpus: len(held)}
	for _, part := range held {
		out.milli, out.memoryMilli = max(out.milli, part.milli), max(out.memoryMilli, part.memoryMilli)
	}
	if g != nil && out.gpus > 0 {
		out.models = e.asked(g).models
	}
	return out
}

// guaranteeOf is the compute that a task has asked for expressly; 0: none.
func guaranteeOf(a *nomad.Alloc, g *nomad.Group, task string) int64 {
	if milli, told := a.Compute[task]; told {
		return milli
	}
	if g != nil {
		if t := g.Task(task); t != nil {
			return t.GuaranteeMilli
		}
	}
	return 0
}

// parts are the parts of compute and memory that so many instances of a GPU are.
func parts(g *place.GPU, instances, guarantee int64) (compute, memory int64) {
	t := state.TakeOf(g, instances, guarantee)
	switch g.Mode {
	case gpu.ModeSlice:
		memory = state.Proportion(instances, g.Slices)
		return max(1, t.Milli), max(1, memory)
	case gpu.ModeShared:
		part := max(1, state.Proportion(instances, g.Replicas))
		return part, part
	}
	return gpu.MilliPerGPU, gpu.MilliPerGPU
}

// asked is what a group asks for: the GPUs of all its tasks, the largest part of one, and
// the models that will do for the first task that has a choice.
func (e *exporter) asked(g *nomad.Group) (out share) {
	for i := range g.Tasks {
		t := &g.Tasks[i]
		if t.Request == "" {
			for _, d := range t.Devices {
				out.add(e.askedOf(d, t.GuaranteeMilli))
			}
			continue
		}
		if r, err := gpu.ParseRequest(t.Request); err == nil {
			out.add(e.requested(r))
		}
	}
	return out
}

func (s *share) add(o share) {
	s.gpus += o.gpus
	s.milli, s.memoryMilli = max(s.milli, o.milli), max(s.memoryMilli, o.memoryMilli)
	if len(s.models) == 0 {
		s.models = o.models
	}
}

// requested is what a request asks for. Memory is a part of the largest GPU that will do.
func (e *exporter) requested(r gpu.Request) share {
	list := e.those(func(g *place.GPU, _ string) bool {
		named := func(model string) bool { return g.Is(model) }
		return (r.Vendor == "" || strings.EqualFold(r.Vendor, g.Vendor)) && !slices.ContainsFunc(r.Excluded(), named) &&
			(r.Model == "" || slices.ContainsFunc(r.Models(), named))
	})
	out := share{gpus: 1, milli: r.Milli, memoryMilli: r.Milli, models: e.choice(list)}
	switch r.Kind {
	case gpu.KindCount:
		out.gpus, out.milli, out.memoryMilli = r.Count, gpu.MilliPerGPU, gpu.MilliPerGPU
	case gpu.KindMemory:
		var card int64
		for _, g := range list {
			card = max(card, g.MemoryMiB)
		}
		out.memoryMilli = gpu.MilliPerGPU
		if card > 0 {
			out.memoryMilli = min(gpu.MilliPerGPU, max(1, r.MemoryMiB*gpu.MilliPerGPU/card))
		}
		if out.milli == 0 {
			out.milli = out.memoryMilli
		}
	}
	return out
}

// askedOf is what a device block asks for: whole GPUs, or slices or replicas of one.
func (e *exporter) askedOf(d nomad.DeviceAsk, guarantee int64) share {
	list := e.those(func(_ *place.GPU, group string) bool {
		vendor, rest, _ := strings.Cut(group, "/")
		kind, name, _ := strings.Cut(rest, "/")
		device := constraint.Device{Vendor: vendor, Type: kind, Name: name}
		return device.Named(d.Name)
	})
	if len(list) == 0 {
		return share{} // it is not for a GPU, or none is there
	}
	out := share{gpus: int(d.Count), models: e.choice(list)}
	out.milli, out.memoryMilli = parts(list[0], d.Count, guarantee)
	if list[0].Mode == gpu.ModeSlice || list[0].Mode == gpu.ModeShared {
		out.gpus = 1
	}
	return out
}

// those are the GPUs of the cluster for which a condition holds, of which it sees the device
// group too, by node and position.
func (e *exporter) those(will func(g *place.GPU, group string) bool) (list []*place.GPU) {
	for _, id := range slices.Sorted(maps.Keys(e.nodes)) {
		n := e.nodes[id]
		for i := range n.Plan.GPUs {
			if g := &n.Plan.GPUs[i]; will(g, n.View.GPUs[i].Group) {
				list = append(list, g)
			}
		}
	}
	return list
}

// choice is the models of some GPUs as nodes.csv has them; none where that is no choice.
func (e *exporter) choice(list []*place.GPU) []string {
	models := map[string]bool{}
	for _, g := range list {
		if name := modelName(g); e.models[name] {
			models[name] = true
		}
	}
	if len(models) == len(e.models) {
		return nil
	}
	return slices.Sorted(maps.Keys(models))
}

// narrowed are the models that a queue lets its work have, of some. Those that no node has,
// where none of the others is left, are no help to a replay.
func (e *exporter) narrowed(models, queue []string) []string {
	if len(queue) == 0 {
		return models
	}
	list := e.those(func(g *place.GPU, _ string) bool {
		return slices.ContainsFunc(queue, g.Is) && (len(models) == 0 || slices.Contains(models, modelName(g)))
	})
	if len(list) == 0 {
		return models
	}
	return e.choice(list)
}
