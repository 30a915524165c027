// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Inputs are what a plan depends on beside the hardware, the registry and
// the configuration.
type Inputs struct {
	// Holders tells what live tasks hold, by device UUID: a cordon spares it.
	Holders map[string]occupancy.Holder
	// Recent is holders with the tasks that ended a moment ago, which Nomad may
	// restart in place: a device does not change its mode under them.
	Recent map[string]occupancy.Holder
	// Reserved are the shares that live tasks hold, or that were handed out and have not come back.
	Reserved map[string]occupancy.Holder
	// Client is what Nomad's client has on its disk; nil where that could not be read.
	Client *Client
	// Busy says what a device with processes waits for, which does not change its mode:
	// "process 4711 (python3) to end".
	Busy map[string]string
	// Cordons are the operator's, by UUID.
	Cordons map[string]string
	// Faults are by UUID; a GPU's are those of its MIG instances too.
	Faults map[string][]gpu.Fault
	// Tasks is how many tasks share each device, by those leases that are live.
	Tasks  map[string]int
	Leases []gpu.Lease
	// LeasesReadAt is when the leases were read; zero if that failed.
	LeasesReadAt time.Time
}

// Client is what Nomad's client has on its disk.
type Client struct {
	// Devices are the instances of allocations with tasks left to run, by ID.
	Devices map[string]string
	// Orders ask for GPUs to be cut again, by UUID.
	Orders map[string]string
}

// Holds names the allocation that has an instance of a device; empty for none.
func (c *Client) Holds(uuid string) string {
	for id, alloc := range c.Devices {
		if s, _, err := gpu.ParseSliceID(id); err == nil && s.UUID == uuid {
			return alloc
		}
	}
	return ""
}

// Units decides how every device that the node has, or had, is offered. It
// enters decisions in the registry and touches nothing else. The order is that of
// the indices: GPUs first, each followed by its MIG instances.
func Units(c *config.Config, l *registry.Registry, machine hardware.Machine, now Inputs) []*Unit {
	l.Admit(machine.GPUs)
	present := map[string]hardware.GPU{}
	for _, g := range machine.GPUs {
		present[g.UUID] = g
	}
	var units []*Unit
	for _, uuid := range l.GPUs() {
		if c.Ignored[uuid] {
			continue
		}
		g, here := present[uuid]
		known := here && g.Known()
		if !known {
			problems := g.Problems
			g = *l.Records[uuid].Hardware
			g.Problems = problems
		}
		units = append(units, planGPU(c, l, g, !known, now)...)
	}
	return units
}

// planGPU decides about one GPU and its MIG instances.
func planGPU(c *config.Config, l *registry.Registry, g hardware.GPU, gone bool, now Inputs) []*Unit {
	r := l.Records[g.UUID]
	rule := c.RuleFor(g, r.Index)
	wanted := rule.Sharing
	if g.Partitioned && !wanted.Mode.InParts() {
		// A GPU that is partitioned cannot be used as a whole.
		wanted.Mode, wanted.Mechanism = config.Vendors[g.Vendor].Parts, gpu.SharingNone
	}
	u := &Unit{UUID: g.UUID, GPU: g, Index: r.Index, MemoryMiB: g.MemoryMiB, Faults: now.Faults[g.UUID],
		Gone: gone}
	waitsFor := inUse(g, now)
	u.Busy = waitsFor != ""
	if gone {
		waitsFor = "it to be seen again"
	}
	u.chooseSharing(r, wanted, waitsFor, now.Cordons[g.UUID])
	if waits := LayoutCordon(rule, g, waitsFor); u.Busy && waits != "" && u.Sharing.Mode.InParts() {
		u.Cordon = waits
	}
	u.setHolder(now.Holders[g.UUID])
	u.Slices = u.Sharing.Slices(g.MemoryMiB, g.ReservedMiB)
	u.Group = u.groupName()
	units := []*Unit{u}
	if !u.Sharing.Mode.InParts() {
		return units
	}
	for _, i := range g.Partitions {
		if !c.Ignored[i.UUID] {
			units = append(units, planInstance(c, l, u, rule, i, now))
		}
	}
	return units
}

func planInstance(c *config.Config, l *registry.Registry, parent *Unit, rule config.Rule, i hardware.Partition, now Inputs) *Unit {
	r := l.Enter(i.UUID, parent.UUID)
	u := &Unit{UUID: i.UUID, Parent: parent.UUID, GPU: parent.GPU, Instance: &i, Index: r.Index,
		MemoryMiB: i.MemoryMiB, Faults: union(parent.Faults, now.Faults[i.UUID])}
	cordon := now.Cordons[i.UUID]
	if cordon == "" {
		cordon = parent.Cordon
	}
	u.chooseSharing(r, rule.SharingOfInstance(i.Profile), waitsFor(i.UUID, now), cordon)
	u.setHolder(now.Holders[i.UUID])
	u.Slices = u.Sharing.Slices(i.MemoryMiB, 0)
	u.Group = u.instanceGroup(c)
	return u
}

// instanceGroup is the group of a MIG instance.
func (u *Unit) instanceGroup(c *config.Config) GroupName {
	if c.HashicorpMIG && u.Sharing.Mode == gpu.ModeWhole && u.Instance.Name != "" {
		return GroupName{u.GPU.Vendor, "gpu", u.Instance.Name}
	}
	return u.groupName()
}

// Foretell says how instances of a profile would be offered that a GPU may be cut into.
func Foretell(c *config.Config, rule config.Rule, g hardware.GPU, p *gpu.MIGProfile) {
	u := &Unit{GPU: g, Instance: &hardware.Partition{Profile: p.Name, Name: g.Model + " MIG " + p.Name}, Sharing: rule.SharingOfInstance(p.Name)}
	name := u.instanceGroup(c)
	if u.Sharing.Mode != gpu.ModeWhole {
		name.Name = p.Name + "/*"
		p.Parts = int64(u.Sharing.Slices(p.MemoryMiB, 0))
	}
	if name != (GroupName{g.Vendor, gpu.TypeMIG, p.Name}) {
		p.Group = name.String()
	}
}

// union is a device's faults: those of its GPU, and its own.
func union(parent, own []gpu.Fault) []gpu.Fault {
	all := slices.Clone(parent)
	for _, f := range own {
		if !slices.ContainsFunc(parent, func(p gpu.Fault) bool { return p.Code == f.Code }) {
			all = append(all, f)
		}
	}
	return all
}

// inUse says what a GPU with anything on it, or on any of its MIG instances, waits for;
// empty for one that is free.
func inUse(g hardware.GPU, now Inputs) string {
	found := waitsFor(g.UUID, now)
	for _, i := range g.Partitions {
		found = cmp.Or(found, waitsFor(i.UUID, now))
	}
	return found
}

// waitsFor says what a device waits for that is in use, or was a moment ago.
func waitsFor(uuid string, now Inputs) string {
	if now.Recent[uuid].Any() {
		return tasksToEnd
	}
	return now.Busy[uuid]
}

const tasksToEnd = "its tasks to end"

// Changing reports whether a GPU is to be offered in another way than before.
func Changing(c *config.Config, l *registry.Registry, g hardware.GPU) bool {
	known := l.Records[g.UUID]
	if known == nil || known.Sharing == (config.Sharing{}) {
		return false
	}
	rule := c.RuleFor(g, known.Index)
	if !known.Sharing.Same(rule.Sharing) || LayoutCordon(rule, g, tasksToEnd) != "" {
		return true
	}
	return slices.ContainsFunc(g.Partitions, func(i hardware.Partition) bool {
		known := l.Records[i.UUID]
		return known != nil && known.Sharing != config.Sharing{} && !known.Sharing.Same(rule.SharingOfInstance(i.Profile))
	})
}

// chooseSharing chooses between the recorded and the wanted sharing: a device in use
// keeps the recorded one, cordoned, until it is empty.
func (u *Unit) chooseSharing(r *registry.Record, wanted config.Sharing, waitsFor, cordon string) {
	u.Cordon = cordon
	switch {
	case r.Sharing == (config.Sharing{}) || r.Sharing.Same(wanted) || waitsFor == "":
		r.Sharing = wanted
	default:
		u.Cordon = fmt.Sprintf("waits for %s, to change from %s to %s", waitsFor, r.Sharing, wanted)
	}
	u.Sharing = r.Sharing
}

func (u *Unit) setHolder(h occupancy.Holder) { u.Held, u.HeldAll = h.Slices, h.All }

// GroupName is the table of device groups. A group of slices belongs to one
// GPU, so that Nomad serves a request from one GPU; whole GPUs of one model
// share a group.
func (u *Unit) groupName() GroupName {
	vendor, short := u.GPU.Vendor, gpu.ShortModel(u.GPU.Model)
	index := fmt.Sprintf("/%d", u.Index)
	if u.Instance != nil {
		short = u.Instance.Profile
	}
	switch u.Sharing.Mode {
	case gpu.ModeSlice:
		if u.Instance != nil {
			return GroupName{vendor, cmp.Or(u.Instance.Kind, gpu.TypeMIG) + "-slice", short + index}
		}
		return GroupName{vendor, gpu.TypeSlice, short + index}
	case gpu.ModeShared:
		return GroupName{vendor, gpu.TypeShared, short + index}
	}
	if u.Instance != nil {
		return GroupName{vendor, cmp.Or(u.Instance.Kind, gpu.TypeMIG), short}
	}
	return GroupName{vendor, u.GPU.Type, u.GPU.Model}
}
