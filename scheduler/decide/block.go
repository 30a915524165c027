package decide

import (
	"path"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// written is a group whose device blocks stand: what it asks of a node, and what
// one of its allocs needs there.
type written struct {
	node  place.Request // only what bounds the node
	alloc place.Blocks
}

// writtenOf is a group with its device blocks as they were decided.
func (b *Book) writtenOf(a *admit.Ask, tasks []admit.TaskDecision) *written {
	q, err := b.config.QueueFor(a.Namespace, a.Queue)
	if err != nil {
		q = nil // Nomad does not ask whose queue it is
	}
	w := &written{alloc: place.Blocks{CPUMHz: a.CPUMHz, MemoryMiB: a.MemoryMiB, Devices: blocksOf(a, tasks)}}
	if w.node, err = b.base(a, q); err != nil {
		w.node.Nodes = []string{noNode}
	}
	return w
}

func (b *Book) writtenAs(g *GroupRecord) *written { return b.writtenOf(&g.Ask, g.Decision.Tasks) }

// blocksOf are the device blocks of a group.
func blocksOf(a *admit.Ask, tasks []admit.TaskDecision) []place.Block {
	var blocks []place.Block
	for i, t := range a.Tasks {
		for _, d := range t.Devices {
			blocks = append(blocks, place.Block{Device: d.Name, Count: d.Count, Conditions: conditions(d.Constraints)})
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

// servesNow reports whether a node takes work, may run a group and has room for
// an alloc of it. What without selects counts as gone.
func (b *Book) servesNow(node string, w *written, without func(*place.Usage) bool) bool {
	n := b.nodes[node]
	return n != nil && !n.Plan.Ineligible && b.snap.Admits(node, &w.node) && b.snap.Serves(node, &w.alloc, without)
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
func (b *Book) datacenters(globs []string) []string {
	if len(globs) == 0 || slices.Contains(globs, "*") {
		return nil
	}
	found := []string{}
	for _, n := range b.nodes {
		dc := n.Plan.Datacenter
		if !slices.Contains(found, dc) && slices.ContainsFunc(globs, func(g string) bool { return globbed(g, dc) }) {
			found = append(found, dc)
		}
	}
	if len(found) == 0 {
		return globs
	}
	slices.Sort(found)
	return found
}
