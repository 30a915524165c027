// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// Measured takes the measurements of a node. Placement hears of them only
// when a GPU's use changed by the configured threshold, since every change
// costs it a new look at the node.
func (s *State) Measured(node string, m nomad.Measurements) {
	s.Do(func(tx *Tx) {
		tx.Cluster.measurements.byNode[node] = m
		tx.noteUse(node)
		loads := tx.Cluster.learned.loads(node)
		tx.Cluster.measurements.noteHot(node, loads)
		tx.version++
		n := tx.Cluster.Node(node)
		if n == nil {
			return
		}
		tx.Cluster.measurements.noteSurplus(n, loads)
		seen := tx.Cluster.measurements.withMeasurements(n)
		if !tx.Cluster.measurements.noticeable(n, seen) {
			seen.Plan = n.Plan
			tx.Cluster.nodes.put(seen)
			return
		}
		tx.node(n)
	})
}

// noteUse keeps since when the tasks of a node have not used their GPUs. A task whose use is
// not known uses them. Where it is known, it is learned what each uses.
func (tx *Tx) noteUse(node string) {
	before, now := tx.Cluster.unused.onNode[node], map[idleKey]unusedSpan{}
	for a := range tx.Cluster.AllocsOn(node) {
		if len(a.Devices) == 0 || a.Status != "running" {
			continue
		}
		for _, h := range tx.Capacity.Holdings(a) {
			key := idleKey{a.ID, h.Task, h.GPU.ID}
			tx.Cluster.learned.learn(a, &h, before[key].at)
			now[key] = tx.Cluster.unused.next(a, &h, before[key])
		}
	}
	tx.Cluster.unused.onNode[node] = now
	tx.rebookBursts(node)
}

// rebookBursts books the allocs of a node again whose expected use has changed.
func (tx *Tx) rebookBursts(node string) {
	n := tx.Cluster.Node(node)
	if n == nil {
		return
	}
	for _, a := range tx.Cluster.allocs.sortedOn(node) {
		u, booked := tx.Capacity.Usage(a.ID)
		if booked && len(a.Devices) > 0 && !slices.Equal(u.Takes, tx.takes(a, n)) {
			tx.rebookAlloc(a)
		}
	}
}

// checkIdleEvery is how often what became idle is looked for, at most.
const checkIdleEvery = time.Second

// CheckIdle has idle work counted so, and work that is not idle any more counted as other work:
// also where it was not measured lately.
func (tx *Tx) CheckIdle() {
	if !tx.Config().WatchesIdle() && len(tx.Capacity.books.flagged) == 0 || tx.Now().Sub(tx.Cluster.unused.checked) < checkIdleEvery {
		return
	}
	tx.Cluster.unused.checked = tx.Now()
	stale := tx.Cluster.unused.suspects()
	maps.Copy(stale, tx.Capacity.books.flagged)
	for _, id := range slices.Sorted(maps.Keys(stale)) {
		a := tx.Cluster.Alloc(id)
		if a == nil || tx.Cluster.unused.idles(a) == tx.Capacity.books.flagged[id] {
			continue
		}
		if _, booked := tx.Capacity.Usage(id); booked {
			tx.rebookAlloc(a)
		}
	}
}

// GPUNodes lists the nodes that are up and have GPUs, or those of them where tasks may use more
// than they are promised, and where GPUs are used more than is expected.
func (s *State) GPUNodes(bursting bool) []string {
	var ids []string
	s.View(func(r *Reader) {
		for _, id := range r.Cluster.NodeIDs() {
			n := r.Cluster.Node(id)
			if len(n.Plan.GPUs) > 0 && n.View.Status == "ready" && (!bursting || r.Cluster.learned.mayBurst(n)) {
				ids = append(ids, id)
			}
		}
	})
	return ids
}
