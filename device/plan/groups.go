// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/device"
)

// Groups turns a plan into what Nomad is told. Groups are ordered by name
// and instances as the plan has them, since Nomad takes any difference, order
// included, for a change of the node.
func Groups(m MachineTraits, units []*Unit) []*device.DeviceGroup {
	byName := map[GroupName][]*Unit{}
	var names []GroupName
	for _, u := range units {
		if !u.Offered() || len(u.IDs()) == 0 {
			continue
		}
		if byName[u.Group] == nil {
			names = append(names, u.Group)
		}
		byName[u.Group] = append(byName[u.Group], u)
	}
	slices.SortFunc(names, func(a, b GroupName) int { return strings.Compare(a.String(), b.String()) })
	groups := make([]*device.DeviceGroup, 0, len(names))
	for _, name := range names {
		groups = append(groups, buildGroup(m, name, byName[name]))
	}
	return groups
}

func buildGroup(m MachineTraits, name GroupName, members []*Unit) *device.DeviceGroup {
	g := &device.DeviceGroup{Vendor: name.Vendor, Type: name.Kind, Name: name.Name, Attributes: attributes(m, members)}
	for _, u := range members {
		locality := &device.DeviceLocality{PciBusID: u.GPU.PCIBusID}
		for n, id := range u.IDs() {
			trouble := u.trouble(n).String()
			g.Devices = append(g.Devices, &device.Device{ID: id, Healthy: trouble == "", HealthDesc: trouble, HwLocality: locality})
		}
	}
	return g
}

// SameGroups compares what Nomad would compare.
func SameGroups(a, b []*device.DeviceGroup) bool {
	return slices.EqualFunc(a, b, func(x, y *device.DeviceGroup) bool {
		return x.Vendor == y.Vendor && x.Type == y.Type && x.Name == y.Name &&
			slices.EqualFunc(x.Devices, y.Devices, func(d, e *device.Device) bool {
				return d.ID == e.ID && d.Healthy == e.Healthy && d.HealthDesc == e.HealthDesc && d.HwLocality.PciBusID == e.HwLocality.PciBusID
			}) && sameAttributes(x.Attributes, y.Attributes)
	})
}
