// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"maps"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// drifted finds a job whose registration and record have to be brought together.
func drifted(tx *state.Tx, skip map[string]bool) *Item {
	for _, key := range tx.Queue.Recorded(state.Drifted) {
		if skip[key.String()] {
			continue
		}
		if item := align(tx, key); item != nil {
			return item
		}
	}
	return nil
}

// align says how to bring one job's registration and record together; nil when there
// is no need. A group that runs without a record needs none until it waits, and one
// that runs above its queue's limit is for bringBack.
func align(tx *state.Tx, key nomad.JobKey) *Item {
	r := tx.Queue.Record(key)
	if r != nil && (tx.Queue.UnderWay(r) || tx.Cluster.Unchangeable(key)) {
		return nil
	}
	for _, g := range tx.Cluster.Job(key).Groups {
		if g.Was == nil || !g.GPU() || state.AsRecorded(r, &g) && !state.Shrunk(r, &g) {
			continue
		}
		q := tx.Cluster.QueueOf(key, g.Name)
		above := q != nil && tx.Queue.Exceeds(q.Name) && !state.Shrunk(r, &g)
		if r != nil && g.Was.Hold == "" && !tx.Queue.Repeats(key).May() {
			continue
		}
		letGo := tx.Cluster.Scaled(key) && g.Was.Hold != "" && tx.Cluster.Live(key, g.Name) > 0 // in part only
		if above && tx.Cluster.Live(key, g.Name) > 0 || tx.Cluster.Blocked(key).Allocs(g.Name) == 0 && (r == nil && !letGo || above) {
			continue
		}
		if r != nil && tx.Queue.Outgrown(key) {
			if known := r.Groups[g.Name]; g.Count > known.Ask.Count && !decide.CanGrow(tx, key, &known, g.Count) {
				continue // allocs that Nomad starts beyond the decision came around the service
			}
		}
		return &Item{Job: key, Revision: decide.Revision{Group: g.Name, Align: true}}
	}
	return nil
}

// reopen finds a group whose excluded nodes it may use again, because the one
// that the room was made for runs or has given up.
func reopen(tx *state.Tx, skip map[string]bool) *Item {
	for _, key := range tx.Queue.Recorded(state.KeptOff) {
		j := tx.Cluster.Job(key)
		if skip[key.String()] || j == nil || j.Stopped || !tx.Queue.Repeats(key).May() {
			continue
		}
		r := tx.Queue.Record(key)
		for _, name := range slices.Sorted(maps.Keys(r.Groups)) {
			if include := over(tx, r, r.Groups[name].Excluded); len(include) > 0 {
				waits := tx.Cluster.Blocked(key).Allocs(name) > 0 && r.Groups[name].Decision.Hold == nil // what is there for it now is in the same registration
				return &Item{Job: key, Revision: decide.Revision{Group: name, Include: include, Retry: waits}}
			}
		}
	}
	return nil
}

// over lists the nodes whose exclusion has served its purpose: the one that the room
// was made for runs, or Nomad had its time and did not start it.
func over(tx *state.Tx, r *record.Record, excluded map[string]string) []string {
	var nodes []string
	for node, forJob := range excluded {
		key := state.ParseKey(forJob)
		waits := tx.Cluster.Blocked(key) != nil && (tx.Within(r.At, state.Unplaced) || ending(tx, node))
		if !waits && len(tx.Capacity.AssumedOf(key)) == 0 {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// ending reports whether something on a node is to end and has not yet.
func ending(tx *state.Tx, node string) bool {
	for a := range tx.Cluster.Stopping() {
		if a.NodeID == node {
			return true
		}
	}
	return false
}
