// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// attributes are what constraints and affinities in jobs can ask of a group.
// Those of HashiCorp's plugin keep their names and units; an attribute in which
// the members of a group differ is left out, since it would be wrong for some.
func attributes(m MachineTraits, members []*Unit) map[string]*structs.Attribute {
	all := attributesOf(m, members[0])
	gpus, parents := make([]string, 0, len(members)), gpu.Parents{}
	healthy, unhealthy := 0, []string(nil)
	var demand []gpu.MIGDemand
	for _, u := range members {
		if d := u.Demand; d != nil && !slices.ContainsFunc(demand, func(o gpu.MIGDemand) bool { return o.GPU == d.GPU }) {
			demand = append(demand, *d)
		}
		own := attributesOf(m, u)
		maps.DeleteFunc(all, func(key string, value *structs.Attribute) bool { return own[key] == nil || !value.Equal(own[key]) })
		gpus = append(gpus, u.Owner())
		if u.Parent != "" {
			parents[u.UUID] = u.Parent
		}
		healthy += u.Healthy()
		if why := u.whyUnhealthy(); why != "" {
			unhealthy = append(unhealthy, u.UUID+": "+why)
		}
	}
	// Nomad remembers per node class whether a job fits; with the number of
	// healthy instances in the class, a sick node does not hide its twins.
	all[gpu.AttrHealthy] = structs.NewIntAttribute(int64(healthy), "")
	// Nomad's commands and pages show attributes, and no instance's health.
	attributeSet(all).text(gpu.AttrUnhealthy, strings.Join(unhealthy, "; "))
	attributeSet(all).text(gpu.AttrParents, parents.String())
	attributeSet(all).text(gpu.AttrMIGDemand, gpu.FormatMIGDemand(demand))
	attributeSet(all).text(gpu.AttrCloseness, m.closeness.Around(gpus...).String())
	return all
}

func attributesOf(m MachineTraits, u *Unit) map[string]*structs.Attribute {
	a := attributeSet{}
	a.text(gpu.AttrModel, u.GPU.Model)
	a.text(gpu.AttrType, gpu.ShortModel(u.GPU.Model))
	a.number(gpu.AttrMemory, u.MemoryMiB, structs.UnitMiB)
	a.text(gpu.AttrSharing, string(u.Sharing.Mechanism))
	a.text(gpu.AttrGrade, string(u.Grade()))
	a.flag(gpu.AttrShared, u.SharedFlag())
	a.flag(gpu.AttrVirtual, u.GPU.Virtual)
	a.text(gpu.AttrDriverVersion, m.Drivers[u.GPU.Vendor].Version)
	a.text(gpu.AttrCUDAVersion, m.Drivers[u.GPU.Vendor].Platform)
	a.text(gpu.AttrTarget, u.GPU.Target)
	a.number(gpu.AttrAICores, int64(u.GPU.AICores), "")
	a.number(gpu.AttrTiles, int64(u.GPU.Tiles), "")
	a.number(gpu.AttrFunctions, int64(u.GPU.Functions), "")
	a.decimal(gpu.AttrComputeCapability, u.GPU.ComputeCapability)
	if u.GPU.NUMANode >= 0 {
		a[gpu.AttrNUMANode] = structs.NewIntAttribute(int64(u.GPU.NUMANode), "")
	}
	a[gpu.AttrIndex] = structs.NewIntAttribute(int64(u.Index), "")
	a.text(gpu.AttrUUID, u.UUID)
	a.text(gpu.AttrPCI, u.GPU.PCIBusID)
	if u.Sharing.Mode == gpu.ModeSlice {
		a.number(gpu.AttrSliceMemory, u.Sharing.SliceMiB, structs.UnitMiB)
	}
	if u.Slices > 0 {
		a.number(gpu.AttrSlices, int64(u.Slices), "")
		a.number(gpu.AttrComputeBurst, u.Sharing.BurstMilli, "")
	}
	if u.SharedFlag() && u.Timeslice != "" {
		a.text(gpu.AttrTimeslice, u.Timeslice)
	}
	if u.Seats != nil {
		a.number(gpu.AttrSeatPriority, int64(u.Seats.MaxPriority), "")
	}
	if u.MPS != nil {
		a.number(gpu.AttrMaxClients, int64(u.MPS.MaxClients), "")
		a.text(gpu.AttrMPSUsers, u.MPS.Users)
		if u.MPS.Protocol > 0 {
			a.number(gpu.AttrMPSProtocol, int64(u.MPS.Protocol), "")
		}
		if u.MPS.Partitioning != nil || u.MPS.HasNamespaces() && u.Exclusive { // a program that leaves MPS gets no GPU
			a.text(gpu.AttrComputeGrade, gpu.ComputeEnforced)
		}
	}
	if u.Instance != nil {
		a.text(gpu.AttrProfile, u.Instance.Profile)
		a.text(gpu.AttrParent, u.Parent)
	}
	a.hashicorp(u.GPU)
	return a
}

// attributeSet leaves out unknown values.
type attributeSet map[string]*structs.Attribute

// hashicorp adds the rest of what nomad-device-nvidia publishes. Its clocks and
// its power were what the GPU drew at that moment; these are the limits, which a
// constraint means and which do not change by themselves.
func (a attributeSet) hashicorp(g hardware.GPU) {
	a.number("power", g.PowerLimitWatts, structs.UnitW)
	a.number("bar1", g.BAR1MiB, structs.UnitMiB)
	a.number("cores_clock", g.CoreClockMHz, structs.UnitMHz)
	a.number("memory_clock", g.MemoryClockMHz, structs.UnitMHz)
	a.number("pci_bandwidth", g.PCIBandwidthMBps, structs.UnitMBPerS)
	a.text("display_state", g.DisplayState)
	a.text("persistence_mode", g.PersistenceMode)
}

func (a attributeSet) text(key, value string) {
	if value != "" {
		a[key] = structs.NewStringAttribute(value)
	}
}

func (a attributeSet) number(key string, value int64, unit string) {
	if value != 0 {
		a[key] = structs.NewIntAttribute(value, unit)
	}
}

// decimal makes a number of "8.6", since that is what Nomad makes of the value
// in a constraint.
func (a attributeSet) decimal(key, value string) {
	if f, err := strconv.ParseFloat(value, 64); err == nil {
		a[key] = structs.NewFloatAttribute(f, "")
	}
}

func (a attributeSet) flag(key string, value bool) { a[key] = structs.NewBoolAttribute(value) }

func sameAttributes(a, b map[string]*structs.Attribute) bool {
	if len(a) != len(b) {
		return false
	}
	keys := make([]string, 0, len(a))
	for key := range a {
		keys = append(keys, key)
	}
	return !slices.ContainsFunc(keys, func(key string) bool { return b[key] == nil || !a[key].Equal(b[key]) })
}

// AttributeText writes an attribute as Nomad shows it.
func AttributeText(a *structs.Attribute) string {
	text := ""
	switch {
	case a.Int != nil:
		text = strconv.FormatInt(*a.Int, 10)
	case a.Float != nil:
		text = strconv.FormatFloat(*a.Float, 'g', -1, 64)
	case a.Bool != nil:
		text = strconv.FormatBool(*a.Bool)
	case a.String != nil:
		text = *a.String
	}
	if a.Unit != "" {
		text += " " + a.Unit
	}
	return text
}

// MachineTraits are what the attributes of every group tell of the machine.
type MachineTraits struct {
	Drivers   map[string]hardware.Driver // by vendor
	closeness gpu.Closeness
}

func TraitsOf(m hardware.Machine, units []*Unit) MachineTraits {
	// The last state of a GPU that is missing now stands: a planner that lost its
	// neighborhood would see the others change.
	var gpus []hardware.GPU
	for _, u := range units {
		if u.Instance == nil {
			gpus = append(gpus, u.GPU)
		}
	}
	return MachineTraits{m.Drivers, closeness(gpus)}
}
