// SPDX-License-Identifier: MPL-2.0

package blocks

import (
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Tasks writes the answer to an ask's Tasks for an alloc on a node.
func Tasks(tx *state.Tx, a *admit.Ask, parts []Part, u Placed) []admit.TaskDecision {
	n := tx.Cluster.Node(u.Node)
	out := make([]admit.TaskDecision, len(a.Tasks))
	for i, t := range a.Tasks {
		out[i] = admit.TaskDecision{Task: t.Task}
		for k, p := range parts {
			if p.Task != i {
				continue
			}
			out[i].Devices = append(out[i].Devices, devicesFor(tx, &p.Req, u.Each[k].Takes, n, t.Plain())...)
			if t.Plain() && len(p.Req.Models) > 0 {
				bound := modelBound(tx, p.Req.Models)
				out[i].Bound = &bound
			}
			take := u.Each[k].Takes[0]
			g := &n.Plan.GPUs[take.GPU]
			out[i].Holds.GPUs += len(u.Each[k].Takes)
			out[i].Holds.Whole = wholeGPU(take, g)
			out[i].Holds.Type, out[i].Holds.Vendor = g.Type, g.Vendor
			out[i].Holds.MemoryMiB = memoryOf(t, take, g)
			if !t.Plain() {
				out[i].Share = share(t, take, g)
			}
			if !t.Plain() && IsSeat(g) {
				out[i].SeatPriority = p.Req.SeatPriority
			}
		}
	}
	return out
}

// devicesFor makes the device blocks that give a task the GPUs of some takes:
// one block for whole devices of one group, one per GPU for slices.
func devicesFor(tx *state.Tx, r *place.Request, takes []place.Take, n *nomad.Node, plain bool) []admit.Device {
	var devices []admit.Device
	for _, t := range takes {
		g, seen := &n.Plan.GPUs[t.GPU], &n.View.GPUs[t.GPU]
		name, group := split(seen.Group)
		if seen.Profile != "" && g.Mode == gpu.ModeWhole {
			name, group = seen.Group, "" // an instance is asked for by its profile
		}
		count := instancesOf(g, t)
		last := len(devices) - 1
		if g.Mode == gpu.ModeWhole && last >= 0 && devices[last].Name == name {
			devices[last].Count++
			if devices[last].Prefer != group {
				devices[last].Prefer = ""
			}
			continue
		}
		d := admit.Device{Name: name, Count: count, Prefer: group}
		if !plain {
			d.Constraints, d.Rank = constraintsFor(tx, r, g), rank(tx, r)
		}
		devices = append(devices, d)
	}
	return devices
}

// split takes a device group apart: the name for a device block, and the name
// that ${device.model} has.
func split(group string) (name, model string) {
	vendor, rest, _ := strings.Cut(group, "/")
	deviceType, model, _ := strings.Cut(rest, "/")
	return vendor + "/" + deviceType, model
}

// constraintsFor keeps a block on the GPUs that were meant, should Nomad or a
// later move put it elsewhere: on the model that was asked for, and, where a
// number of slices stands for a part of the GPU, on GPUs of that many; where it
// stands for memory, on GPUs whose slices are no smaller.
func constraintsFor(tx *state.Tx, r *place.Request, g *place.GPU) []admit.Constraint {
	list := modelConditions(tx, r, g)
	if g.Profile != "" && g.Mode != gpu.ModeWhole {
		list = append(list, admit.Constraint{LTarget: "${device.attr.profile}", RTarget: g.Profile, Operand: "="})
	}
	switch {
	case IsSeat(g):
		list = append(list, seatConditions(r)...)
	case exact(r, g):
		list = append(list, admit.Constraint{LTarget: "${device.attr.slices}", RTarget: strconv.FormatInt(g.Slices, 10), Operand: "="})
	case g.Mode == gpu.ModeSlice && !r.Whole:
		list = append(list, admit.Constraint{LTarget: "${device.attr.slice_memory}", RTarget: strconv.FormatInt(g.SliceMiB, 10) + " MiB", Operand: ">="})
	}
	return list
}

// exact reports whether the number of slices means a part of the GPU and not
// only an amount of memory.
func exact(r *place.Request, g *place.GPU) bool {
	return g.Mode == gpu.ModeSlice && (r.MemoryMiBPerGPU == 0 || r.Cover)
}

// wholeGPU reports whether a take is all of a GPU.
func wholeGPU(t place.Take, g *place.GPU) bool {
	return g.Mode == gpu.ModeWhole || g.Mode == gpu.ModeSlice && t.Slices == g.Slices
}

// memoryOf is the GPU memory that a task may use: its request, within
// the slices that it holds. A turn on a shared GPU promises none.
func memoryOf(t admit.TaskAsk, take place.Take, g *place.GPU) int64 {
	switch {
	case IsSeat(g):
		return seatMemory(t.Request.MemoryMiB, g)
	case g.Mode == gpu.ModeShared:
		return 0
	case wholeGPU(take, g):
		return g.MemoryMiB
	}
	memory := take.Slices * g.SliceMiB
	if asked := t.Request.MemoryMiB; asked > 0 {
		memory = min(memory, asked)
	}
	return memory
}

// share is the part that the driver must be told: only values that do not follow from the
// slices.
func share(t admit.TaskAsk, take place.Take, g *place.GPU) gpu.Share {
	if IsSeat(g) {
		return gpu.Share{MemoryMiB: seatMemory(t.Request.MemoryMiB, g)}
	}
	if g.Mode != gpu.ModeSlice || wholeGPU(take, g) {
		return gpu.Share{}
	}
	s := gpu.Share{LimitMilli: t.LimitMilli}
	if memory := memoryOf(t, take, g); memory < take.Slices*g.SliceMiB {
		s.MemoryMiB = memory
	}
	if take.Milli != state.Proportion(take.Slices, g.Slices) {
		s.GuaranteeMilli = take.Milli
	}
	return s
}
