// SPDX-License-Identifier: MPL-2.0

package blocks

import (
	"path"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Need is what a group needs with its device blocks as they were decided.
func Need(tx *state.Tx, a *admit.Ask, tasks []admit.TaskDecision) *state.Need {
	q, err := tx.Config().QueueFor(a.Namespace, a.Queue)
	if err != nil {
		q = nil // Nomad does not ask whose queue it is
	}
	need := &state.Need{Alloc: place.Blocks{CPUMHz: a.CPUMHz, MemoryMiB: a.MemoryMiB, Devices: blocksOf(a, tasks)}}
	if need.Node, err = base(tx, a, q); err != nil {
		need.Node.Nodes = []string{NoNode}
	}
	return need
}

// NeedOf is what a group needs with its device blocks as they are recorded.
func NeedOf(tx *state.Tx, g *record.Group) *state.Need { return Need(tx, &g.Ask, g.Decision.Tasks) }

// blocksOf are the device blocks of a group.
func blocksOf(a *admit.Ask, tasks []admit.TaskDecision) []place.Block {
	var blocks []place.Block
	for i, t := range a.Tasks {
		for _, d := range t.Devices {
			var bound []constraint.Constraint
			if i < len(tasks) && tasks[i].Bound != nil {
				bound = conditions([]admit.Constraint{*tasks[i].Bound})
			}
			block := place.Block{Device: d.Name, Count: d.Count, Conditions: slices.Concat(conditions(d.Constraints), bound)}
			for _, or := range d.Or {
				block.Or = append(block.Or, place.Block{Device: or.Name, Count: or.Count, Conditions: slices.Concat(conditions(or.Constraints), bound)})
			}
			blocks = append(blocks, block)
		}
		if t.Plain() || i >= len(tasks) {
			continue
		}
		for _, d := range tasks[i].Devices {
			blocks = append(blocks, place.Block{
				Device: d.Name, Count: d.Count, Milli: tasks[i].Share.GuaranteeMilli, Conditions: conditions(d.Bounds(a.Sharing)),
			})
		}
	}
	return blocks
}

// conditions are a job's constraints as the core takes them.
func conditions(list []admit.Constraint) []constraint.Constraint {
	var out []constraint.Constraint
	for _, c := range list {
		out = append(out, constraint.Constraint{Left: c.LTarget, Operand: c.Operand, Right: c.RTarget})
	}
	return out
}

// instancesOf is how many of Nomad's instances a take holds.
func instancesOf(g *place.GPU, t place.Take) int64 {
	switch g.Mode {
	case gpu.ModeSlice:
		return t.Slices
	case gpu.ModeShared:
		return t.Replicas
	}
	return 1
}

func globbed(glob, s string) bool {
	ok, err := path.Match(glob, s)
	return ok || err != nil
}

// datacenters resolves globs; none means all.
func datacenters(tx *state.Tx, globs []string) []string {
	if len(globs) == 0 || slices.Contains(globs, "*") {
		return nil
	}
	found := []string{}
	for _, dc := range tx.Cluster.Datacenters() {
		if slices.ContainsFunc(globs, func(g string) bool { return globbed(g, dc) }) {
			found = append(found, dc)
		}
	}
	if len(found) == 0 {
		return globs
	}
	return found
}

// NoNode stands where no node at all may be a candidate: an empty list would
// mean every node.
const NoNode = "none"
