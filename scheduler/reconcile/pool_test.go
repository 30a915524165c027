// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// join adds a node with two GPUs to the cluster.
func (h *modelRun) join(pool, model string) {
	n := newModel(h.t, 1, 2).nodes[0]
	h.index++
	n.ID, n.Name, n.NodePool, n.ModifyIndex = "node-of-"+pool+model, pool+model, pool, h.index
	for _, d := range n.NodeResources.Devices {
		d.Name = strings.Replace(d.Name, "T4", model, 1)
		d.Attributes["type"], d.Attributes["model"] = word(model), word("NVIDIA "+model)
		for _, in := range d.Instances {
			in.ID = pool + model + in.ID
		}
	}
	h.nodes = append(h.nodes, n)
	h.tell(nomad.Change{Node: nomad.NewNode(n, nomad.Hardware{})})
	h.schedule()
}
