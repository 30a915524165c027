// SPDX-License-Identifier: MPL-2.0

package blocks

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// modelBound is the condition that keeps a device block on GPUs of some models, as Nomad
// evaluates it: by their short names where all of them are such, which holds for nodes
// that join as well; else by the full names of those that the cluster has. Where a device
// plugin tells no such names it is by the names of the device groups.
func modelBound(tx *state.Tx, models []string) admit.Constraint {
	var short, full []string
	onlyShort := true
	for _, name := range models {
		canonical := name
		for g := range gpus(tx) {
			switch {
			case strings.EqualFold(g.Type, name):
				canonical = g.Type
			case g.Is(name):
				onlyShort = false
			}
			if g.Is(name) && !slices.Contains(full, g.Model) {
				full = append(full, g.Model)
			}
		}
		short = append(short, canonical)
	}
	bound := admit.Constraint{LTarget: byType, Operand: "set_contains_any", RTarget: strings.Join(short, ",")}
	if !onlyShort {
		slices.Sort(full)
		bound = admit.Constraint{LTarget: byModel, Operand: "set_contains_any", RTarget: strings.Join(full, ",")}
	}
	return orByGroup(tx, models, bound)
}

const (
	byType  = "${device.attr.type}"
	byModel = "${device.attr.model}"
	byGroup = "${device.model}"
)

// orByGroup is the condition that keeps a block on some models, or one on the names of
// their device groups where a GPU of them does not meet it: other device plugins than
// ours tell no models beside.
func orByGroup(tx *state.Tx, models []string, bound admit.Constraint) admit.Constraint {
	var groups []string
	met := true
	for g := range gpus(tx) {
		if g.Device == nil || !slices.ContainsFunc(models, g.Is) {
			continue
		}
		met = met && g.Device.Meets(conditions([]admit.Constraint{bound}))
		if !slices.Contains(groups, g.Device.Name) {
			groups = append(groups, g.Device.Name)
		}
	}
	if met {
		return bound
	}
	slices.Sort(groups)
	return admit.Constraint{LTarget: byGroup, Operand: "set_contains_any", RTarget: strings.Join(groups, ",")}
}

// modelConditions keep a device block on the models that a request may use; one of them
// is the GPU's.
func modelConditions(tx *state.Tx, r *place.Request, g *place.GPU) []admit.Constraint {
	var list []admit.Constraint
	switch {
	case len(r.Models) == 1 && strings.EqualFold(r.Models[0], g.Type):
		list = append(list, orByGroup(tx, r.Models, admit.Constraint{LTarget: byType, RTarget: g.Type, Operand: "="}))
	case len(r.Models) == 1:
		list = append(list, orByGroup(tx, r.Models, admit.Constraint{LTarget: byModel, RTarget: g.Model, Operand: "="}))
	case len(r.Models) > 1:
		list = append(list, modelBound(tx, r.Models))
	}
	for _, name := range r.Not {
		list = append(list, exclusion(tx, name)...)
	}
	return list
}

// exclusion keeps a device block off GPUs of a model, as modelBound keeps it on one.
func exclusion(tx *state.Tx, model string) []admit.Constraint {
	not := func(target, name string) admit.Constraint {
		return admit.Constraint{LTarget: target, RTarget: name, Operand: "!="}
	}
	canonical, onlyShort := model, true
	var list []admit.Constraint
	for g := range gpus(tx) {
		if !g.Is(model) {
			continue
		}
		c := not(byModel, g.Model)
		if strings.EqualFold(g.Type, model) {
			canonical = g.Type
			c = not(byType, g.Type)
		} else {
			onlyShort = false
		}
		if g.Device != nil && g.Device.Meets(conditions([]admit.Constraint{c})) { // it tells no models
			c = not(byGroup, g.Device.Name)
		}
		if !slices.Contains(list, c) {
			list = append(list, c)
		}
	}
	if c := not(byType, canonical); onlyShort && !slices.Contains(list, c) {
		list = append(list, c) // of nodes that join
	}
	slices.SortFunc(list, func(a, b admit.Constraint) int {
		return cmp.Or(strings.Compare(a.LTarget, b.LTarget), strings.Compare(a.RTarget, b.RTarget))
	})
	return list
}

// rank has Nomad prefer the models of a request in their order, where it chooses by itself.
func rank(tx *state.Tx, r *place.Request) []admit.Affinity {
	if !r.Ordered || len(r.Models) < 2 {
		return nil
	}
	var list []admit.Affinity
	for i, name := range r.Models {
		c := modelBound(tx, []string{name})
		if c.LTarget == byGroup || c.RTarget == "" {
			continue // the group's name is what one GPU is preferred by
		}
		list = append(list, admit.Affinity{LTarget: c.LTarget, Operand: c.Operand, RTarget: c.RTarget, Weight: 100 * (len(r.Models) - i) / len(r.Models)})
	}
	return list
}

// gpus are all GPUs of the cluster.
func gpus(tx *state.Tx) iter.Seq[*place.GPU] {
	return func(yield func(*place.GPU) bool) {
		for _, id := range tx.Cluster.NodeIDs() {
			for i := range tx.Cluster.Node(id).Plan.GPUs {
				if !yield(&tx.Cluster.Node(id).Plan.GPUs[i]) {
					return
				}
			}
		}
	}
}
