// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"fmt"
	"net/url"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/hashicorp/nomad/api"
)

// readNode reads one node. A first view takes one such read per node, since Nomad's list
// (with resources=true as well) has neither attributes nor meta. Nodes with many slices are
// large, and the next encoding/json decodes them in a quarter of the time of this one: the
// first view computes for 0.6 of the time (BenchmarkFirstView).
func (c *Client) readNode(ctx context.Context, id string) (*api.Node, error) {
	body, err := c.api.Raw().Response("/v1/node/"+url.PathEscape(id), query(ctx))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var n wireNode
	if err := json.UnmarshalRead(body, &n, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return nil, fmt.Errorf("decode node %q: %w", id, err)
	}
	return n.node(), nil
}

// wireNode is the needed part of Nomad's node.
type wireNode struct {
	ID, Name, Datacenter, NodePool, NodeClass, HTTPAddr, Status, SchedulingEligibility string

	Drain             bool
	DrainStrategy     *struct{} // whatever it is
	ModifyIndex       uint64
	Attributes, Meta  map[string]string
	Drivers           map[string]*api.DriverInfo
	HostVolumes       map[string]*api.HostVolumeInfo
	CSINodePlugins    map[string]*struct{ Healthy bool }
	NodeResources     *wireResources
	ReservedResources *struct {
		Cpu    struct{ CpuShares uint64 }
		Memory struct{ MemoryMB uint64 }
	}
}

type wireResources struct {
	Cpu     struct{ CpuShares int64 }
	Memory  struct{ MemoryMB int64 }
	Devices []struct {
		Vendor, Type, Name string
		Attributes         map[string]*api.Attribute
		Instances          []api.NodeDevice
	}
}

// node is the same as Nomad's own package has it.
func (w *wireNode) node() *api.Node {
	n := &api.Node{
		ID: w.ID, Name: w.Name, Datacenter: w.Datacenter, NodePool: w.NodePool, NodeClass: w.NodeClass, HTTPAddr: w.HTTPAddr, Status: w.Status,
		SchedulingEligibility: w.SchedulingEligibility, Drain: w.Drain, ModifyIndex: w.ModifyIndex, Attributes: w.Attributes, Meta: w.Meta,
		Drivers: w.Drivers, HostVolumes: w.HostVolumes,
	}
	for id, p := range w.CSINodePlugins {
		if p != nil {
			if n.CSINodePlugins == nil {
				n.CSINodePlugins = map[string]*api.CSIInfo{}
			}
			n.CSINodePlugins[id] = &api.CSIInfo{Healthy: p.Healthy}
		}
	}
	if w.DrainStrategy != nil {
		n.DrainStrategy = &api.DrainStrategy{}
	}
	if r := w.ReservedResources; r != nil {
		n.ReservedResources = &api.NodeReservedResources{Cpu: api.NodeReservedCpuResources{CpuShares: r.Cpu.CpuShares}, Memory: api.NodeReservedMemoryResources{MemoryMB: r.Memory.MemoryMB}}
	}
	if r := w.NodeResources; r != nil {
		n.NodeResources = &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: r.Cpu.CpuShares}, Memory: api.NodeMemoryResources{MemoryMB: r.Memory.MemoryMB}}
		for i := range r.Devices {
			d := &r.Devices[i]
			g := &api.NodeDeviceResource{Vendor: d.Vendor, Type: d.Type, Name: d.Name, Attributes: d.Attributes}
			for k := range d.Instances {
				g.Instances = append(g.Instances, &d.Instances[k])
			}
			n.NodeResources.Devices = append(n.NodeResources.Devices, g)
		}
	}
	return n
}
