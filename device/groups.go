package device

import (
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// buildGroups turns a plan into what Nomad is told. Groups are ordered by name
// and instances as the plan has them, since Nomad takes any difference, order
// included, for a change of the node.
func buildGroups(m machineTraits, units []*unit) []*device.DeviceGroup {
	byName := map[groupName][]*unit{}
	var names []groupName
	for _, u := range units {
		if !u.offered() || len(u.ids()) == 0 {
			continue
		}
		if byName[u.group] == nil {
			names = append(names, u.group)
		}
		byName[u.group] = append(byName[u.group], u)
	}
	slices.SortFunc(names, func(a, b groupName) int { return strings.Compare(a.String(), b.String()) })
	groups := make([]*device.DeviceGroup, 0, len(names))
	for _, name := range names {
		groups = append(groups, buildGroup(m, name, byName[name]))
	}
	return groups
}

func buildGroup(m machineTraits, name groupName, members []*unit) *device.DeviceGroup {
	g := &device.DeviceGroup{Vendor: name.vendor, Type: name.kind, Name: name.name, Attributes: attributes(m, members)}
	for _, u := range members {
		locality := &device.DeviceLocality{PciBusID: u.gpu.PCIBusID}
		for n, id := range u.ids() {
			trouble := u.trouble(n).String()
			g.Devices = append(g.Devices, &device.Device{ID: id, Healthy: trouble == "", HealthDesc: trouble, HwLocality: locality})
		}
	}
	return g
}

// machineTraits are what the attributes of every group tell of the machine.
type machineTraits struct {
	drivers   map[string]hardware.Driver // by vendor
	closeness gpu.Closeness
}

func traitsOf(m hardware.Machine, units []*unit) machineTraits {
	// What was known of a GPU that is missing now stands: a planner that lost its
	// neighborhood would see the others change.
	var gpus []hardware.GPU
	for _, u := range units {
		if u.instance == nil {
			gpus = append(gpus, u.gpu)
		}
	}
	return machineTraits{m.Drivers, closeness(gpus)}
}

// sameGroups compares what Nomad would compare.
func sameGroups(a, b []*device.DeviceGroup) bool {
	return slices.EqualFunc(a, b, func(x, y *device.DeviceGroup) bool {
		return x.Vendor == y.Vendor && x.Type == y.Type && x.Name == y.Name &&
			slices.EqualFunc(x.Devices, y.Devices, func(d, e *device.Device) bool {
				return d.ID == e.ID && d.Healthy == e.Healthy && d.HealthDesc == e.HealthDesc && d.HwLocality.PciBusID == e.HwLocality.PciBusID
			}) && sameAttributes(x.Attributes, y.Attributes)
	})
}

// sharedFlag reports whether several tasks may be on the device at once.
func (u *unit) sharedFlag() bool {
	return u.sharing.Mode == gpu.ModeSlice || u.sharing.Mode == gpu.ModeShared
}
