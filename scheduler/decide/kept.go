// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// holdAfter is the hold of a victim's group for which Nomad would start it again at once in room that is
// kept for what goes before it; nil where there is no such room, or something else of the group runs.
func holdAfter(tx *state.Tx, e *Eviction, v *Victim, window *Window) *admit.Hold {
	r := tx.Queue.Record(v.Job)
	if r == nil || tx.Cluster.Unchangeable(v.Job) {
		return nil
	}
	g, known := r.Groups[v.Group]
	stays := slices.ContainsFunc(tx.Cluster.AllocsOf(v.Job), func(a *nomad.Alloc) bool {
		return a.Group == v.Group && !a.Stopping && !slices.ContainsFunc(e.Victims, func(o Victim) bool { return o.AllocID == a.ID })
	})
	if !known || stays || !places(&g.Ask) {
		return nil
	}
	need := blocks.NeedOf(tx, &g)
	if a, err := newGroupAsk(tx, v.Job, &g.Ask); err == nil {
		for first := range window.Before(a.work()) {
			if (first.Node != v.Node || e.Room == nil) && tx.Capacity.ServesNow(first.Node, need, nil) {
				return holdOf(first, v.Job)
			}
		}
	}
	if e.Moves || !mayHold(tx, v.Job, &g.Ask) {
		return nil
	}
	return &admit.Hold{Kind: view.WaitsForRoom, Sentence: "it made room for a job that goes first"}
}
