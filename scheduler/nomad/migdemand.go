// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// MIGDemand is a GPU whose layout follows demand, and the order that its node has for it: the
// one with an empty ID where there is none.
type MIGDemand struct {
	gpu.MIGDemand
	Order  gpu.MIGOrder
	Offers []MIGOffer
}

// MIGOffer is how an instance of a profile is offered that a GPU has, or may be cut into.
type MIGOffer struct {
	Profile string
	Parts   int64 // slices or replicas; 0 is whole
	Size    int64 // its memory, or, where that is not told, its memory slices
	group   *constraint.Device
	unseen  bool // no instance of the profile is there, and some attributes are not known
}

// unseenAttributes depend on how an instance is offered, and are known when one is there.
var unseenAttributes = []string{
	gpu.AttrSharing, gpu.AttrGrade, gpu.AttrComputeGrade, gpu.AttrShared, gpu.AttrSliceMemory, gpu.AttrComputeBurst, gpu.AttrTimeslice, gpu.AttrMaxClients,
	gpu.AttrMPSUsers, gpu.AttrMPSProtocol, gpu.AttrHealthy, gpu.AttrIndex, gpu.AttrSlices,
}

// Serves is how often an instance serves a device block: 0 where Nomad would not take it for one.
func (o *MIGOffer) Serves(device string, conditions []constraint.Constraint, count int64) int {
	for _, c := range conditions {
		named := func(attribute string) bool { return strings.Contains(c.Left+c.Right, "${device.attr."+attribute+"}") }
		if !(o.unseen && slices.ContainsFunc(unseenAttributes, named)) && !c.OnDevice(o.group) {
			return 0
		}
	}
	switch {
	case !o.group.Named(device):
		return 0
	case o.Parts > 0:
		return int(o.Parts / count)
	}
	return 1
}

// migOffers are those of a GPU, by what its node shows.
func (n *Node) migOffers(d *MIGDemand) (offers []MIGOffer) {
	shown := func(match func(i gpu.MIGInstance) bool) *place.GPU {
		for _, i := range d.Instances {
			at := slices.IndexFunc(n.Plan.GPUs, func(g place.GPU) bool { return g.ID == i.UUID && g.Device != nil })
			if at >= 0 && match(i) {
				return &n.Plan.GPUs[at]
			}
		}
		return nil
	}
	sibling := shown(func(gpu.MIGInstance) bool { return true })
	if sibling == nil {
		return nil
	}
	for _, p := range d.Profiles {
		own := shown(func(i gpu.MIGInstance) bool { return i.Profile == p.Name })
		if !p.Allowed && own == nil {
			continue
		}
		o := MIGOffer{Profile: p.Name, Parts: p.Parts, Size: cmp.Or(p.MemoryMiB, int64(p.Size)), unseen: own == nil}
		vendor, rest, _ := strings.Cut(cmp.Or(p.Group, "nvidia/"+gpu.TypeMIG+"/"+p.Name), "/")
		kind, name, _ := strings.Cut(rest, "/")
		o.group = &constraint.Device{Vendor: vendor, Type: kind, Name: name}
		if own != nil {
			o.group.Attributes = own.Device.Attributes
			o.Parts = own.Slices + own.Replicas
		} else {
			o.group.Attributes = maps.Clone(sibling.Device.Attributes)
			o.group.Attributes[gpu.AttrProfile] = constraint.Text(p.Name)
			if delete(o.group.Attributes, gpu.AttrMemory); p.MemoryMiB > 0 {
				o.group.Attributes[gpu.AttrMemory] = constraint.Int(p.MemoryMiB, "MiB")
			}
		}
		offers = append(offers, o)
	}
	return offers
}

// Group is the device group, with "*" for an index.
func (o *MIGOffer) Group() string { return o.group.Vendor + "/" + o.group.Type + "/" + o.group.Name }

// migDemands are the GPUs of a node whose layout follows demand. What cannot be read tells
// nothing: such a GPU keeps its layout.
func migDemands(n *api.Node) (all []MIGDemand) {
	if n.NodeResources == nil {
		return nil
	}
	for _, g := range n.NodeResources.Devices {
		told, err := gpu.ParseMIGDemand(attributes(g.Attributes).text(gpu.AttrMIGDemand))
		if err != nil {
			continue
		}
		for _, d := range told {
			if slices.ContainsFunc(all, func(other MIGDemand) bool { return other.GPU == d.GPU }) {
				continue // each group of the GPU's instances tells it
			}
			one := MIGDemand{MIGDemand: d}
			if order, err := gpu.ParseMIGOrder(n.Meta[gpu.MIGOrderMeta+d.GPU]); err == nil {
				one.Order = order
			}
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b MIGDemand) int { return strings.Compare(a.GPU, b.GPU) })
	return all
}

// migLayouts are such GPUs for people.
func migLayouts(demands []MIGDemand) (all []view.MIGLayout) {
	for _, d := range demands {
		one := view.MIGLayout{GPU: d.GPU, Name: d.Name(), Instances: make([]string, len(d.Instances)), Cutting: d.Doing != "", Refused: d.Why}
		for i, instance := range d.Instances {
			one.Instances[i] = instance.String()
		}
		for _, at := range d.Cuts {
			one.Cuts = append(one.Cuts, time.Unix(at, 0).UTC())
		}
		all = append(all, one)
	}
	return all
}

// Recut writes an order for a GPU into the metadata of its node; nil takes back the one that is
// there.
func (a *Actor) Recut(ctx context.Context, nodeID, uuid string, order *gpu.MIGOrder) error {
	var text *string
	if order != nil {
		s := order.String()
		text = &s
	}
	_, err := a.api.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{
		NodeID: nodeID, Meta: map[string]*string{gpu.MIGOrderMeta + uuid: text},
	}, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("write metadata of node %q: %w", nodeID, err)
	}
	return nil
}
