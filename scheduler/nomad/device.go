// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"cmp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Hardware is what the operator says about devices that do not tell.
type Hardware struct {
	// ResourceNames are the device names of whole devices per vendor word.
	ResourceNames map[string]string
	// ModelMemoryMiB is a model's memory.
	ModelMemoryMiB map[string]int64
}

// device is one GPU in both its forms: for planning and for people.
type device struct {
	plan place.GPU
	view view.GPU
}

// devices finds the GPUs among a node's device groups, in the order of group
// and ID. Other devices are left out.
func (h Hardware) devices(groups []*api.NodeDeviceResource) []device {
	var found []device
	for _, g := range groups {
		mode, ok := h.modeOf(g)
		if !ok {
			continue
		}
		byUUID := map[string][]part{}
		for _, in := range g.Instances {
			id, _, err := gpu.ParseSliceID(in.ID)
			if err != nil {
				continue
			}
			byUUID[id.UUID] = append(byUUID[id.UUID], part{id.N, view.Instance{ID: in.ID, Healthy: in.Healthy}})
		}
		group := deviceGroup(g)
		for uuid, parts := range byUUID {
			d := h.device(g, mode, uuid, inOrder(parts))
			d.plan.Device = group
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b device) int {
		return cmp.Or(strings.Compare(a.view.Group, b.view.Group), strings.Compare(a.view.UUID, b.view.UUID))
	})
	joinNeighbors(found, groups)
	return found
}

// part is an instance with its number on the GPU.
type part struct {
	number   int
	instance view.Instance
}

func inOrder(parts []part) []view.Instance {
	slices.SortFunc(parts, func(a, b part) int { return a.number - b.number })
	instances := make([]view.Instance, len(parts))
	for i := range parts {
		instances[i] = parts[i].instance
	}
	return instances
}

// deviceGroup is a group as constraints see it.
func deviceGroup(g *api.NodeDeviceResource) *constraint.Device {
	d := &constraint.Device{Vendor: g.Vendor, Type: g.Type, Name: g.Name, Attributes: make(map[string]constraint.Value, len(g.Attributes)), IDs: make([]string, 0, len(g.Instances))}
	for _, in := range g.Instances {
		d.IDs = append(d.IDs, in.ID)
	}
	for name, a := range g.Attributes {
		switch {
		case a == nil:
		case a.IntVal != nil:
			d.Attributes[name] = constraint.Int(*a.IntVal, a.Unit)
		case a.FloatVal != nil:
			d.Attributes[name] = constraint.Float(*a.FloatVal, a.Unit)
		case a.BoolVal != nil:
			d.Attributes[name] = constraint.Bool(*a.BoolVal)
		case a.StringVal != nil:
			d.Attributes[name] = constraint.Text(*a.StringVal)
		}
	}
	return d
}

// modeOf reads the mode off the device type. A MIG instance has the mode in
// which it is offered itself.
func (h Hardware) modeOf(g *api.NodeDeviceResource) (gpu.Mode, bool) {
	if mode, _, known := gpu.ModeOfType(g.Type); known {
		return mode, true
	}
	for _, name := range h.ResourceNames {
		if name == g.Type || name == g.Vendor+"/"+g.Type {
			return gpu.ModeWhole, true
		}
	}
	return "", false
}

func (h Hardware) device(g *api.NodeDeviceResource, mode gpu.Mode, uuid string, instances []view.Instance) device {
	a := attributes(g.Attributes)
	// What cannot be read tells nothing, as from a plugin that says nothing.
	parents, _ := gpu.ParseParents(a.text(gpu.AttrParents))
	d := device{view: view.GPU{
		UUID: uuid, ParentUUID: parents[uuid], Vendor: g.Vendor, Model: a.text(gpu.AttrModel), Type: a.text(gpu.AttrType),
		Group: g.ID(), Mode: string(mode), Sharing: a.text(gpu.AttrSharing), Grade: a.text(gpu.AttrGrade),
		MemoryMiB: a.mib(gpu.AttrMemory), SliceMemoryMiB: a.mib(gpu.AttrSliceMemory), Instances: instances, Healthy: true,
		Measured: view.Measured{Milli: view.Unmeasured, MemoryMiB: view.Unmeasured, TemperatureC: view.Unmeasured, PowerW: view.Unmeasured},
	}}
	if d.view.Model == "" {
		d.view.Model, _, _ = strings.Cut(g.Name, "/")
	}
	if d.view.Type == "" {
		d.view.Type = gpu.ShortModel(d.view.Model)
	}
	d.view.Profile = a.text(gpu.AttrProfile)
	if _, part, _ := gpu.ModeOfType(g.Type); part && d.view.Profile == "" {
		d.view.Profile, _, _ = strings.Cut(g.Name, "/")
	}
	if d.view.MemoryMiB == 0 {
		d.view.MemoryMiB = gpu.ByName(d.view.Model, h.ModelMemoryMiB[d.view.Type])
	}
	d.health(g)
	d.plan = place.GPU{
		ID: uuid, Vendor: g.Vendor, Model: d.view.Model, Type: d.view.Type, Mode: mode, Sharing: gpu.Sharing(d.view.Sharing),
		Profile: d.view.Profile, MemoryMiB: d.view.MemoryMiB, NUMA: int(a.number(gpu.AttrNUMANode, -1)),
		Unhealthy: !d.view.Healthy, Cordoned: d.view.Cordoned,
		MeasuredMilli: place.Unmeasured, MeasuredMemoryMiB: place.Unmeasured, SeatPriority: a.seatPriority(),
	}
	d.amounts()
	return d
}

// health sums up the instances. Those in use stay healthy for Nomad while a GPU
// is cordoned; a fault is one of all of them.
func (d *device) health(g *api.NodeDeviceResource) {
	for i, in := range d.view.Instances {
		if in.Healthy {
			continue
		}
		at := slices.IndexFunc(g.Instances, func(n *api.NodeDevice) bool { return n.ID == d.view.Instances[i].ID })
		d.view.Health = g.Instances[at].HealthDescription
		why, _ := gpu.ParseHealth(d.view.Health) // another plugin's words are no cordon
		d.view.Cordoned = why.Cordon != ""
		d.view.Healthy = d.view.Cordoned
		return
	}
}

// amounts sets how much of the device there is to give away.
func (d *device) amounts() {
	n := int64(len(d.view.Instances)) // no device is without
	switch d.plan.Mode {
	case gpu.ModeSlice:
		d.plan.Slices = n
		d.plan.SliceMiB = d.view.SliceMemoryMiB
		if d.plan.SliceMiB == 0 {
			d.plan.SliceMiB = max(1, d.view.MemoryMiB/n)
		}
		d.view.SliceMemoryMiB = d.plan.SliceMiB
	case gpu.ModeShared:
		d.plan.Replicas = n
	}
}

// seatPriority is the highest that a job may give a task with a seat: the default of a
// plugin that does not tell.
func (a attributes) seatPriority() int {
	if a.text(gpu.AttrSharing) != string(gpu.SharingSuspend) {
		return 0
	}
	return int(a.number(gpu.AttrSeatPriority, gpu.NormalSeatPriority))
}

// joinNeighbors translates the closeness of the GPUs, which is told by UUID, to
// positions. A group of several GPUs has no NUMA node of its own.
func joinNeighbors(found []device, groups []*api.NodeDeviceResource) {
	near := map[string]gpu.Closeness{}
	for _, g := range groups {
		// What cannot be read tells nothing: GPUs are then as far as they may be.
		near[g.ID()], _ = gpu.ParseCloseness(attributes(g.Attributes).text(gpu.AttrCloseness))
	}
	for i := range found {
		d := &found[i]
		c, uuid := near[d.view.Group], cmp.Or(d.view.ParentUUID, d.view.UUID)
		if node, known := c.NUMANode(uuid); known {
			d.plan.NUMA = node
		}
		if d.view.ParentUUID != "" {
			continue // a MIG instance has no NVLink
		}
		for _, peer := range c.LinkPeers(uuid) {
			if at := slices.IndexFunc(found, func(o device) bool { return o.view.UUID == peer }); at >= 0 {
				d.plan.Peers = append(d.plan.Peers, at)
			}
		}
		slices.Sort(d.plan.Peers)
	}
}

// attributes reads a device group's typed attributes.
type attributes map[string]*api.Attribute

func (a attributes) text(key string) string {
	v := a[key]
	if v == nil {
		return ""
	}
	return v.String()
}

func (a attributes) number(key string, otherwise int64) int64 {
	v := a[key]
	if v == nil || v.IntVal == nil {
		return otherwise
	}
	return *v.IntVal
}

// mib reads an amount of memory, whose unit is MiB unless it says GiB.
func (a attributes) mib(key string) int64 {
	v := a[key]
	switch {
	case v == nil || v.IntVal == nil:
		return 0
	case v.Unit == "GiB":
		return *v.IntVal * 1024
	default:
		return *v.IntVal
	}
}
