package state

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Measured takes the measurements of a node. Placement hears of them only
// when a GPU's use changed by the configured threshold, since every change
// costs it a new look at the node.
func (s *State) Measured(node string, m nomad.Measurements) {
	s.Do(func(tx *Tx) {
		tx.measured[node] = m
		tx.noteUse(node)
		loads := tx.loads(node)
		tx.noteHot(m, loads)
		tx.noteSurplus(node, m, loads)
		tx.version++
		n := tx.nodes.byID[node]
		if n == nil {
			return
		}
		seen := tx.withMeasurements(n)
		if !tx.noticeable(n, seen) {
			seen.Plan = n.Plan
			tx.nodes.put(seen)
			return
		}
		tx.node(n)
	})
}

// heat is since when a GPU is measured to be fully used, and when it was last.
type heat struct{ since, last time.Time }

// noteHot keeps since when GPUs are measured to be fully used.
func (tx *Tx) noteHot(m nomad.Measurements, loads map[string]load) {
	maps.DeleteFunc(tx.hot, func(_ string, h heat) bool { return !tx.fresh(h) })
	for id, v := range m.GPUs {
		l, inUse := loads[id]
		if cappedUse(v.Milli, l, inUse) <= place.CoolMilli {
			delete(tx.hot, id)
			continue
		}
		h, known := tx.hot[id]
		if !known {
			h.since = tx.Now()
		}
		h.last = tx.Now()
		tx.hot[id] = h
	}
}

// fresh reports whether heat was measured lately: one measurement may be missing.
func (r *Reader) fresh(h heat) bool { return r.lately(h.last) }

// HotGPUs are the GPUs, by ID, that have been measured to be fully used for so long.
func (r *Reader) HotGPUs(long time.Duration) map[string]bool {
	hot := map[string]bool{}
	for id, h := range r.hot {
		hot[id] = r.fresh(h) && h.last.Sub(h.since) >= long
	}
	return hot
}

// withMeasurements is a node with what was measured last on its GPUs.
func (r *Reader) withMeasurements(n *nomad.Node) *nomad.Node {
	m := r.measured[n.Plan.ID]
	if len(m.GPUs) == 0 {
		return n
	}
	out := *n
	out.Plan.GPUs = slices.Clone(n.Plan.GPUs)
	out.View.GPUs = slices.Clone(n.View.GPUs)
	for i := range out.Plan.GPUs {
		v, ok := m.GPUs[out.Plan.GPUs[i].ID]
		if !ok {
			continue
		}
		out.View.GPUs[i].Measured = v
		out.Plan.GPUs[i].SurplusMilli = r.surplus[out.Plan.GPUs[i].ID]
		if r.Config().Placement.Weights.MeasuredMilli == 0 {
			continue // to the planner, GPUs do not differ in what it does not read
		}
		out.Plan.GPUs[i].MeasuredMilli = or(v.Milli, view.Unmeasured, place.Unmeasured)
		out.Plan.GPUs[i].MeasuredMemoryMiB = or(v.MemoryMiB, view.Unmeasured, place.Unmeasured)
	}
	return &out
}

func or(v, unknown, otherwise int64) int64 {
	if v == unknown {
		return otherwise
	}
	return v
}

// noticeable reports whether any GPU's use differs by the threshold.
func (r *Reader) noticeable(before, after *nomad.Node) bool {
	for i := range after.Plan.GPUs {
		x, y := &before.Plan.GPUs[i], &after.Plan.GPUs[i]
		if x.SurplusMilli != y.SurplusMilli { // in steps of the threshold
			return true
		}
		memory := int64(0)
		if y.MemoryMiB > 0 {
			memory = (y.MeasuredMemoryMiB - x.MeasuredMemoryMiB) * gpu.MilliPerGPU / y.MemoryMiB
		}
		if max(distance(x.MeasuredMilli, y.MeasuredMilli), distance(memory, 0)) >= max(1, r.Config().ChangeThresholdMilli) {
			return true
		}
	}
	return false
}

func distance(x, y int64) int64 { return max(x-y, y-x) }

// GPUNodes lists the nodes that are up and have GPUs, or those of them where tasks may use more
// than they are promised, and where GPUs are used more than is expected.
func (s *State) GPUNodes(bursting bool) []string {
	var ids []string
	s.View(func(r *Reader) {
		for _, id := range r.NodeIDs() {
			n := r.Node(id)
			if len(n.Plan.GPUs) > 0 && n.View.Status == "ready" && (!bursting || r.mayBurst(n)) {
				ids = append(ids, id)
			}
		}
	})
	return ids
}
