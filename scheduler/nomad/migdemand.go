// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// MIGDemand is a GPU whose layout follows demand, and the order that its node has for it: the
// one with an empty ID where there is none.
type MIGDemand struct {
	gpu.MIGDemand
	Order gpu.MIGOrder
}

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
		one := view.MIGLayout{GPU: d.GPU, Instances: make([]string, len(d.Instances)), Cutting: d.Doing != "", Refused: d.Why}
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
