// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Node is a Nomad client, for planning and for people. GPUs have the same
// position in both.
type Node struct {
	Index uint64 // Nomad's modify index
	Plan  place.Node
	View  view.Node
	MIG   []MIGDemand // its GPUs whose layout follows demand
}

// Slot is where a device instance lies.
type Slot struct {
	GPU      int // position in Plan.GPUs
	Instance int // position in View.GPUs[GPU].Instances
}

// Slot finds a device instance by its ID. A map of the 640 instances that eight GPUs may have would be
// larger than all else that is known of a node.
func (n *Node) Slot(id string) (Slot, bool) {
	parsed, _, err := gpu.ParseSliceID(id)
	if err != nil {
		return Slot{}, false
	}
	for at := range n.View.GPUs {
		if n.View.GPUs[at].UUID != parsed.UUID {
			continue
		}
		list := n.View.GPUs[at].Instances
		i := min(parsed.N, len(list)-1) // they are in the order of their numbers
		for ; i > 0 && list[i].ID != id; i-- {
		}
		if i >= 0 && list[i].ID == id {
			return Slot{at, i}, true
		}
	}
	return Slot{}, false
}

// NewNode translates Nomad's node. Plan.Attributes holds what constraints may
// name, without the braces: attr.kernel.name, meta.rack, node.class.
func NewNode(n *api.Node, h Hardware) *Node {
	out := &Node{
		Index: n.ModifyIndex,
		Plan: place.Node{
			ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, Pool: n.NodePool,
			Attributes: constraintTargets(n),
		},
		View: view.Node{
			ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, Pool: n.NodePool, Class: n.NodeClass, Address: n.HTTPAddr,
			Status: n.Status, Eligible: n.SchedulingEligibility == api.NodeSchedulingEligible,
			Draining: n.Drain || n.DrainStrategy != nil, GPUs: []view.GPU{},
		},
	}
	out.capacity(n)
	out.MIG = migDemands(n)
	out.View.MIGLayouts = migLayouts(out.MIG)
	if n.NodeResources != nil {
		for _, d := range h.devices(n.NodeResources.Devices) {
			out.Plan.GPUs = append(out.Plan.GPUs, d.plan)
			out.View.GPUs = append(out.View.GPUs, d.view)
		}
	}
	for i := range out.MIG {
		out.MIG[i].Offers = out.migOffers(&out.MIG[i])
	}
	out.Plan.Ineligible = !out.View.Ready()
	return out
}

// capacity is what Nomad gives to tasks: the total less what is reserved.
func (n *Node) capacity(from *api.Node) {
	if from.NodeResources == nil {
		return
	}
	cpu, memory := from.NodeResources.Cpu.CpuShares, from.NodeResources.Memory.MemoryMB
	if r := from.ReservedResources; r != nil {
		cpu -= int64(r.Cpu.CpuShares)
		memory -= int64(r.Memory.MemoryMB)
	}
	n.Plan.CPUMHz, n.Plan.MemoryMiB = max(0, cpu), max(0, memory)
	n.View.CPUMHz, n.View.MemoryMiB = n.Plan.CPUMHz, n.Plan.MemoryMiB
}

func constraintTargets(n *api.Node) map[string]string {
	m := map[string]string{}
	for k, v := range n.Attributes {
		m["attr."+k] = v
	}
	for k, v := range n.Meta {
		m["meta."+k] = v
	}
	m["node.unique.id"], m["node.unique.name"] = n.ID, n.Name
	m["node.datacenter"], m["node.class"], m["node.pool"] = n.Datacenter, n.NodeClass, n.NodePool
	addFeasibility(m, n)
	return m
}
