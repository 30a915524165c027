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
		tx.measurements.byNode[node] = m
		tx.noteUse(node)
		loads := tx.learned.loads(node)
		tx.measurements.noteHot(node, loads)
		tx.version++
		n := tx.Node(node)
		if n == nil {
			return
		}
		tx.measurements.noteSurplus(n, loads)
		seen := tx.measurements.withMeasurements(n)
		if !tx.measurements.noticeable(n, seen) {
			seen.Plan = n.Plan
			tx.nodes.put(seen)
			return
		}
		tx.node(n)
	})
}

// noteUse keeps since when the tasks of a node have not used their GPUs. A task whose use is
// not known uses them. Where it is known, it is learned what each uses.
func (tx *Tx) noteUse(node string) {
	before, now := tx.unused.onNode[node], map[idleKey]unusedSpan{}
	for a := range tx.AllocsOn(node) {
		if len(a.Devices) == 0 || a.Status != "running" {
			continue
		}
		for _, h := range tx.Holdings(a) {
			key := idleKey{a.ID, h.Task, h.GPU.ID}
			tx.learned.learn(a, &h, before[key].at)
			now[key] = tx.unused.next(a, &h, before[key])
		}
	}
	tx.unused.onNode[node] = now
	tx.rebookBursts(node)
}

// rebookBursts books the allocs of a node again whose expected use has changed.
func (tx *Tx) rebookBursts(node string) {
	n := tx.Node(node)
	if n == nil {
		return
	}
	for _, a := range tx.allocs.sortedOn(node) {
		u, booked := tx.Usage(a.ID)
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
	if !tx.Config().WatchesIdle() && len(tx.books.flagged) == 0 || tx.Now().Sub(tx.unused.checked) < checkIdleEvery {
		return
	}
	tx.unused.checked = tx.Now()
	stale := tx.unused.suspects()
	maps.Copy(stale, tx.books.flagged)
	for _, id := range slices.Sorted(maps.Keys(stale)) {
		a := tx.Alloc(id)
		if a == nil || tx.unused.idles(a) == tx.books.flagged[id] {
			continue
		}
		if _, booked := tx.Usage(id); booked {
			tx.rebookAlloc(a)
		}
	}
}

// GPUNodes lists the nodes that are up and have GPUs, or those of them where tasks may use more
// than they are promised, and where GPUs are used more than is expected.
func (s *State) GPUNodes(bursting bool) []string {
	var ids []string
	s.View(func(r *Reader) {
		for _, id := range r.NodeIDs() {
			n := r.Node(id)
			if len(n.Plan.GPUs) > 0 && n.View.Status == "ready" && (!bursting || r.learned.mayBurst(n)) {
				ids = append(ids, id)
			}
		}
	})
	return ids
}
