// SPDX-License-Identifier: MPL-2.0

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

// measurements are the readings of the GPUs of nodes.
type measurements struct {
	clock    clock
	settings *settings
	byNode   map[string]nomad.Measurements // the last readings
	hot      map[string]heat               // GPUs by ID that are measured to be fully used
	surplus  map[string]int64              // GPUs by ID that are used more than is expected, in milli
}

func newMeasurements(c clock, s *settings) *measurements {
	return &measurements{clock: c, settings: s, byNode: map[string]nomad.Measurements{}, hot: map[string]heat{}, surplus: map[string]int64{}}
}

// UseOf is the last measured use by a task of a GPU that it holds an instance of, and
// whether that is known. The GPU's own reading counts where the task is alone on it.
func (l *measurements) UseOf(node, uuid, instance string, alone bool) (nomad.TaskUse, bool) {
	m := l.byNode[node]
	if use, known := m.Tasks[instance]; known {
		return use, true
	}
	g, known := m.GPUs[uuid]
	return nomad.TaskUse{At: g.At, Milli: g.Milli, MemoryMiB: g.MemoryMiB}, known && alone
}

// lately reports whether something was measured at most one measurement ago: one may be missing.
func (l *measurements) lately(at time.Time) bool {
	return l.clock.Now().Sub(at) <= 2*l.settings.config.MonitorInterval+10*time.Second
}

// usesNothing reports whether a task was measured to use nothing of a GPU's compute. Where that is not
// known, it holds for a task without memory there, and for one that is alone on a GPU which
// does nothing.
func (l *measurements) usesNothing(node string, h *Holding, use nomad.TaskUse) bool {
	switch {
	case use.Milli != view.Unmeasured:
		return use.Milli == 0
	case use.MemoryMiB == 0:
		return true
	}
	return h.Alone() && l.byNode[node].GPUs[h.GPU.ID].Milli == 0
}

// heat is since when a GPU is measured to be fully used, and when it was last.
type heat struct{ since, last time.Time }

// noteHot keeps since when GPUs are measured, now those of a node, to be fully used.
func (l *measurements) noteHot(node string, loads map[string]load) {
	maps.DeleteFunc(l.hot, func(_ string, h heat) bool { return !l.fresh(h) })
	for id, v := range l.byNode[node].GPUs {
		load, inUse := loads[id]
		if cappedUse(v.Milli, load, inUse) <= place.CoolMilli {
			delete(l.hot, id)
			continue
		}
		h, known := l.hot[id]
		if !known {
			h.since = l.clock.Now()
		}
		h.last = l.clock.Now()
		l.hot[id] = h
	}
}

// fresh reports whether heat was measured lately: one measurement may be missing.
func (l *measurements) fresh(h heat) bool { return l.lately(h.last) }

// HotGPUs are the GPUs, by ID, that have been measured to be fully used for so long.
func (l *measurements) HotGPUs(long time.Duration) map[string]bool {
	hot := map[string]bool{}
	for id, h := range l.hot {
		hot[id] = l.fresh(h) && h.last.Sub(h.since) >= long
	}
	return hot
}

// withMeasurements is a node with the last readings of its GPUs.
func (l *measurements) withMeasurements(n *nomad.Node) *nomad.Node {
	m := l.byNode[n.Plan.ID]
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
		out.Plan.GPUs[i].SurplusMilli = l.surplus[out.Plan.GPUs[i].ID]
		if l.settings.config.Placement.Weights.MeasuredMilli == 0 {
			continue // to the planner, GPUs do not differ in fields that it does not read
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
func (l *measurements) noticeable(before, after *nomad.Node) bool {
	for i := range after.Plan.GPUs {
		x, y := &before.Plan.GPUs[i], &after.Plan.GPUs[i]
		if x.SurplusMilli != y.SurplusMilli { // in steps of the threshold
			return true
		}
		memory := int64(0)
		if y.MemoryMiB > 0 {
			memory = (y.MeasuredMemoryMiB - x.MeasuredMemoryMiB) * gpu.MilliPerGPU / y.MemoryMiB
		}
		if max(distance(x.MeasuredMilli, y.MeasuredMilli), distance(memory, 0)) >= max(1, l.settings.config.ChangeThresholdMilli) {
			return true
		}
	}
	return false
}

func distance(x, y int64) int64 { return max(x-y, y-x) }

// cappedUse is the measured use of a GPU, and not more than its tasks can use: hardware tells in
// which part of the time anything computed, which a task that may use a tenth can be all of it.
func cappedUse(measured int64, of load, inUse bool) int64 {
	if inUse {
		return min(measured, of.most)
	}
	return measured
}

// noteSurplus keeps the use measured on the GPUs of a node beyond the expected use there.
func (l *measurements) noteSurplus(n *nomad.Node, loads map[string]load) {
	m := l.byNode[n.Plan.ID]
	for i := range n.Plan.GPUs {
		id := n.Plan.GPUs[i].ID
		v, measured := m.GPUs[id]
		if !measured || v.Milli == view.Unmeasured {
			delete(l.surplus, id)
			continue
		}
		load, inUse := loads[id]
		over := max(0, cappedUse(min(v.Milli, gpu.MilliPerGPU), load, inUse)-load.expected)
		if over = l.settings.noticed(l.surplus[id], over); over > 0 {
			l.surplus[id] = over
		} else {
			delete(l.surplus, id)
		}
	}
}

// surplusOf is how much more a GPU is used than is expected, in milli.
func (l *measurements) surplusOf(id string) int64 { return l.surplus[id] }

// leave forgets the surplus measured on the GPUs of a node that is gone.
func (l *measurements) leave(n *nomad.Node) {
	for i := range n.Plan.GPUs {
		delete(l.surplus, n.Plan.GPUs[i].ID)
	}
}
