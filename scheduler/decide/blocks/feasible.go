// SPDX-License-Identifier: MPL-2.0

package blocks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// mostPerAlloc is for how many allocs the names of their volumes are spelled out: beyond that
// a node need not have one of them.
const mostPerAlloc = 64

// feasible are the conditions under which Nomad starts a group on a node and that no constraint
// of the job says: its drivers and volumes must be there. What every node meets is left out, for
// the core looks at nodes in the same state as one where nothing tells them apart. They are
// never written into a job.
func feasible(tx *state.Tx, a *admit.Ask) []constraint.Constraint {
	var list []constraint.Constraint
	add := func(target string, any ...string) {
		c := constraint.Constraint{Left: "${" + target + "}", Operand: "set_contains_any", Right: strings.Join(any, ",")}
		if !slices.Contains(list, c) && !tx.Cluster.EveryNodeMeets(c) {
			list = append(list, c)
		}
	}
	for _, driver := range a.Drivers {
		add(nomad.TargetDrivers, driver, nomad.AnyDriver)
	}
	for _, v := range a.Volumes {
		target := nomad.TargetWritableVolumes
		if v.ReadOnly {
			target = nomad.TargetHostVolumes
		}
		switch {
		case v.Type == "csi": // whose plugin it is only Nomad knows
			if c := (constraint.Constraint{Left: "${" + nomad.TargetCSIPlugins + "}", Operand: "is_set"}); !slices.Contains(list, c) && !tx.Cluster.EveryNodeMeets(c) {
				list = append(list, c)
			}
		case v.Type != "host", v.Source == "", strings.Contains(v.Source, ","), strings.TrimSpace(v.Source) != v.Source, strings.HasPrefix(v.Source, "${"):
		case !v.PerAlloc:
			add(target, v.Source)
		case a.Count <= mostPerAlloc:
			var names []string
			for i := range a.Count {
				names = append(names, fmt.Sprintf("%s[%d]", v.Source, i))
			}
			add(target, names...)
		}
	}
	return list
}

// Whenever are the parts without the conditions on drivers and volumes, which a node may
// lack today and have tomorrow.
func Whenever(parts []Part) []Part {
	out := slices.Clone(parts)
	for i := range out {
		out[i].Or = slices.Clone(out[i].Or)
		out[i].Alternatives(func(r *place.Request) {
			r.Constraints = slices.DeleteFunc(slices.Clone(r.Constraints), func(c constraint.Constraint) bool {
				return slices.Contains([]string{"${" + nomad.TargetDrivers + "}", "${" + nomad.TargetHostVolumes + "}", "${" + nomad.TargetWritableVolumes + "}", "${" + nomad.TargetCSIPlugins + "}"}, c.Left)
			})
		})
	}
	return out
}
