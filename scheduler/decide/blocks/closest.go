// SPDX-License-Identifier: MPL-2.0

package blocks

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// KeepClose sees to it that tasks of several whole GPUs get those that were chosen
// for being near each other: Nomad takes instances of a device group at random. On
// the node of each alloc the group's other GPUs are left out by their IDs, and all
// other nodes stay as they are, so that the alloc can still go anywhere. Where
// several allocs share a node nothing is left out: each may hold what the other does.
func KeepClose(tx *state.Tx, tasks []admit.TaskDecision, a *admit.Ask, parts []Part, units []Placed) {
	if !staysApart(a) {
		return
	}
	on := map[string]int{}
	for _, u := range units {
		on[u.Node]++
	}
	for _, u := range units {
		if on[u.Node] > 1 {
			continue
		}
		n := tx.Cluster.Node(u.Node)
		for i, t := range a.Tasks {
			if t.Plain() || i >= len(tasks) {
				continue
			}
			for k, p := range parts {
				if p.Task == i {
					leaveOut(tasks[i].Devices, u.Each[k].Takes, n)
				}
			}
		}
	}
}

// staysApart reports whether no further alloc of the group is to be expected on a
// node that has one: a service may grow, or start a canary, on the GPUs that its
// first alloc left.
func staysApart(a *admit.Ask) bool {
	return a.JobType == "batch" || a.Gang || a.Distinct != ""
}

// leaveOut writes into the block of some takes which GPUs of their device group are
// not meant. Where all of the group are equally near, it does not matter.
func leaveOut(devices []admit.Device, takes []place.Take, n *nomad.Node) {
	if len(takes) < 2 {
		return
	}
	first := takes[0].GPU
	group := n.View.GPUs[first].Group
	var together, others []int
	for i, g := range n.Plan.GPUs {
		switch {
		case g.Mode != gpu.ModeWhole || g.Profile != "" || n.View.GPUs[i].Group != group:
		case slices.ContainsFunc(takes, func(t place.Take) bool { return t.GPU == i }):
			together = append(together, i)
		default:
			others = append(others, i)
		}
	}
	if len(together) != len(takes) || n.Plan.EquallyNear(slices.Concat(together, others)) {
		return
	}
	name, _ := split(group)
	at := slices.IndexFunc(devices, func(d admit.Device) bool { return d.Name == name && d.Count == int64(len(takes)) })
	if at < 0 {
		return
	}
	for _, i := range others {
		devices[at].Constraints = append(devices[at].Constraints, admit.Constraint{LTarget: n.Plan.GPUs[i].ID, Operand: "!=", RTarget: "${device.ids}"})
	}
}
