package device

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

// planInputs are what a plan depends on beside the hardware, the registry and
// the configuration.
type planInputs struct {
	// holders tells what live tasks hold, by device UUID: a cordon spares it.
	holders map[string]occupancy.Holder
	// recent is holders with the tasks that ended a moment ago, which Nomad may
	// restart in place: a device does not change its mode under them.
	recent map[string]occupancy.Holder
	// busy GPUs have processes; they do not change their mode.
	busy map[string]bool
	// cordons are the operator's, by UUID.
	cordons map[string]string
	// faults are by UUID; a GPU's are those of its MIG instances too.
	faults map[string][]gpu.Fault
	// tasks is how many tasks share each device, by those leases that are live.
	tasks  map[string]int
	leases []gpu.Lease
	// leasesReadAt is when the leases were read; zero if that failed.
	leasesReadAt time.Time
}

// plan decides how every device that the node has, or had, is offered. It
// enters decisions in the registry and touches nothing else. The order is that of
// the indices: GPUs first, each followed by its MIG instances.
func plan(c *config.Config, l *registry.Registry, machine hardware.Machine, now planInputs) []*unit {
	l.Admit(machine.GPUs)
	present := map[string]hardware.GPU{}
	for _, g := range machine.GPUs {
		present[g.UUID] = g
	}
	var units []*unit
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
func planGPU(c *config.Config, l *registry.Registry, g hardware.GPU, gone bool, now planInputs) []*unit {
	r := l.Records[g.UUID]
	rule := c.RuleFor(g, r.Index)
	wanted := rule.Sharing
	if g.Partitioned && !wanted.Mode.InParts() {
		// A GPU that is partitioned cannot be used as a whole.
		wanted.Mode, wanted.Mechanism = config.Vendors[g.Vendor].Parts, gpu.SharingNone
	}
	u := &unit{uuid: g.UUID, gpu: g, index: r.Index, memoryMiB: g.MemoryMiB, faults: now.faults[g.UUID],
		busy: inUse(g, now), gone: gone}
	u.chooseSharing(r, wanted, u.busy || gone, now.cordons[g.UUID])
	if waits := layoutCordon(rule, g, u.busy); waits != "" && u.sharing.Mode.InParts() {
		u.cordon = waits
	}
	u.setHolder(now.holders[g.UUID])
	u.slices = u.sharing.Slices(g.MemoryMiB, g.ReservedMiB)
	u.group = u.groupName()
	units := []*unit{u}
	if !u.sharing.Mode.InParts() {
		return units
	}
	for _, i := range g.Partitions {
		if !c.Ignored[i.UUID] {
			units = append(units, planInstance(c, l, u, rule, i, now))
		}
	}
	return units
}

func planInstance(c *config.Config, l *registry.Registry, parent *unit, rule config.Rule, i hardware.Partition, now planInputs) *unit {
	r := l.Enter(i.UUID, parent.uuid)
	u := &unit{uuid: i.UUID, parent: parent.uuid, gpu: parent.gpu, instance: &i, index: r.Index,
		memoryMiB: i.MemoryMiB, faults: union(parent.faults, now.faults[i.UUID])}
	cordon := now.cordons[i.UUID]
	if cordon == "" {
		cordon = parent.cordon
	}
	u.chooseSharing(r, rule.SharingOfInstance(i.Profile), now.recent[i.UUID].Any() || now.busy[i.UUID], cordon)
	u.setHolder(now.holders[i.UUID])
	u.slices = u.sharing.Slices(i.MemoryMiB, 0)
	u.group = u.groupName()
	if c.HashicorpMIG && u.sharing.Mode == gpu.ModeWhole && i.Name != "" {
		u.group = groupName{parent.gpu.Vendor, "gpu", i.Name}
	}
	return u
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

// inUse reports whether anything runs, or ran a moment ago, on a GPU or on any
// of its MIG instances.
func inUse(g hardware.GPU, now planInputs) bool {
	if now.busy[g.UUID] || now.recent[g.UUID].Any() {
		return true
	}
	return slices.ContainsFunc(g.Partitions, func(i hardware.Partition) bool {
		return now.busy[i.UUID] || now.recent[i.UUID].Any()
	})
}

// chooseSharing chooses between what the device was and what it shall be: a device in
// use stays what it was, cordoned, until it is empty.
func (u *unit) chooseSharing(r *registry.Record, wanted config.Sharing, inUse bool, cordon string) {
	u.cordon = cordon
	switch {
	case r.Sharing == (config.Sharing{}) || r.Sharing.Same(wanted) || !inUse:
		r.Sharing = wanted
	default:
		u.cordon = fmt.Sprintf("waits for its tasks to end, to change from %s to %s", r.Sharing, wanted)
	}
	u.sharing = r.Sharing
}

func (u *unit) setHolder(h occupancy.Holder) { u.held, u.heldAll = h.Slices, h.All }

// groupName is the table of device groups. A group of slices belongs to one
// GPU, so that Nomad serves a request from one GPU; whole GPUs of one model
// share a group.
func (u *unit) groupName() groupName {
	vendor, short := u.gpu.Vendor, gpu.ShortModel(u.gpu.Model)
	index := fmt.Sprintf("/%d", u.index)
	if u.instance != nil {
		short = u.instance.Profile
	}
	switch u.sharing.Mode {
	case gpu.ModeSlice:
		if u.instance != nil {
			return groupName{vendor, cmp.Or(u.instance.Kind, gpu.TypeMIG) + "-slice", short + index}
		}
		return groupName{vendor, gpu.TypeSlice, short + index}
	case gpu.ModeShared:
		return groupName{vendor, gpu.TypeShared, short + index}
	}
	if u.instance != nil {
		return groupName{vendor, cmp.Or(u.instance.Kind, gpu.TypeMIG), short}
	}
	return groupName{vendor, u.gpu.Type, u.gpu.Model}
}
