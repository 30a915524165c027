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

// A task whose limit is above its guarantee, or that nothing limits, may burst: use more of a GPU
// than it is promised. What such tasks use is learned here, for placement to expect it of the next
// alloc, and so is what is measured on a GPU beyond what is expected there.

// taskKey names a task of a group, of all children of a periodic or parameterized job alike.
type taskKey struct {
	job         nomad.JobKey
	group, task string
}

func (r *Reader) taskKeyOf(key nomad.JobKey, group, task string) taskKey {
	return taskKey{r.family(key), group, task}
}

// learnedUse is the compute that the allocs of a task use of a GPU.
type learnedUse struct {
	micro int64 // smoothed, in millionths
	told  int64 // in milli, as placement knows it
}

// smoothing is how many measurements a use is smoothed over, about.
const smoothing = 8

// forgetUseAt is at how many tasks those of jobs that are gone are forgotten.
const forgetUseAt = 20_000

// learnUse takes what a task used of a GPU when it was measured last.
func (tx *Tx) learnUse(key taskKey, milli int64) {
	l, known := tx.learned[key]
	if !known {
		l.micro = 1000 * milli
		if len(tx.learned) >= forgetUseAt {
			maps.DeleteFunc(tx.learned, func(k taskKey, _ learnedUse) bool { return tx.jobs.byKey[k.job] == nil })
		}
	}
	l.micro += (1000*milli - l.micro) / smoothing
	l.told = tx.noticed(l.told, l.micro/1000)
	tx.learned[key] = l
}

// learnFrom learns what a task that runs uses of a GPU, if that was measured after some time.
func (tx *Tx) learnFrom(a *nomad.Alloc, h *Holding, after time.Time) {
	if h.GPU.Mode == gpu.ModeWhole || h.GPU.HasSeats() {
		return
	}
	use, known := tx.UseOf(a.NodeID, h.GPU.ID, h.Instances[0], h.Alone())
	if !known || use.Milli == view.Unmeasured || !use.At.After(after) {
		return
	}
	promised := promisedOf(h.GPU, place.Take{Milli: h.Milli, Replicas: int64(len(h.Instances))})
	tx.learnUse(tx.taskKeyOf(a.Key(), a.Group, h.Task), min(use.Milli, tx.ceiling(a, h.Task, h.GPU, promised)))
}

// ExpectedUse is the compute of a GPU that a task is expected to use by what its allocs used, not
// above its limit (0: none); 0 where none was measured. It may be less than it is guaranteed.
func (r *Reader) ExpectedUse(key nomad.JobKey, group, task string, limit int64) int64 {
	if r.Config().Placement.Weights.HeatMilli == 0 {
		return 0
	}
	use := r.learned[r.taskKeyOf(key, group, task)].told
	if limit > 0 {
		return min(use, limit)
	}
	return use
}

// ceiling is the most compute that a task can use of a GPU of which it is promised so much.
func (r *Reader) ceiling(a *nomad.Alloc, task string, g *place.GPU, promised int64) int64 {
	held := g.Sharing == gpu.SharingMPS || g.Sharing == gpu.SharingHAMi
	switch limit := r.Limit(a, task); {
	case held && limit > 0:
		return max(limit, promised)
	case held && g.Mode == gpu.ModeSlice:
		return promised
	}
	return gpu.MilliPerGPU
}

// expectedUse is what a task of an alloc is expected to use of a GPU: what it is promised, or what
// was learned. Tasks that step aside for each other do not use the GPU at once.
func (r *Reader) expectedUse(a *nomad.Alloc, task string, g *place.GPU, promised int64) int64 {
	if g.Mode == gpu.ModeWhole || g.HasSeats() {
		return promised
	}
	use := r.ExpectedUse(a.Key(), a.Group, task, r.ceiling(a, task, g, promised))
	return max(promised, use)
}

// load is what the tasks that run on a GPU are expected to use of it, and can use at most.
type load struct{ expected, most int64 }

// loads is the load of the GPUs of a node that have any.
func (r *Reader) loads(node string) map[string]load {
	all := map[string]load{}
	for _, a := range r.allocs.onNode[node] {
		if len(a.Devices) == 0 || a.Status != "running" {
			continue
		}
		for _, h := range r.Holdings(a) {
			promised := promisedOf(h.GPU, place.Take{Milli: h.Milli, Replicas: int64(len(h.Instances))})
			l := all[h.GPU.ID]
			l.expected += r.expectedUse(a, h.Task, h.GPU, promised)
			l.most += r.ceiling(a, h.Task, h.GPU, promised)
			all[h.GPU.ID] = l
		}
	}
	return all
}

// cappedUse is what was measured of a GPU, and not more than its tasks can use: hardware tells in
// which part of the time anything computed, which a task that may use a tenth can be all of it.
func cappedUse(measured int64, l load, inUse bool) int64 {
	if inUse {
		return min(measured, l.most)
	}
	return measured
}

// noteSurplus keeps what is measured on the GPUs of a node beyond what is expected there.
func (tx *Tx) noteSurplus(node string, m nomad.Measurements, loads map[string]load) {
	n := tx.nodes.byID[node]
	if n == nil {
		return
	}
	for i := range n.Plan.GPUs {
		id := n.Plan.GPUs[i].ID
		v, measured := m.GPUs[id]
		if !measured || v.Milli == view.Unmeasured {
			delete(tx.surplus, id)
			continue
		}
		l, inUse := loads[id]
		over := max(0, cappedUse(min(v.Milli, gpu.MilliPerGPU), l, inUse)-l.expected)
		if over = tx.noticed(tx.surplus[id], over); over > 0 {
			tx.surplus[id] = over
		} else {
			delete(tx.surplus, id)
		}
	}
}

// rebookBursts books the allocs of a node again of which another use is expected now.
func (tx *Tx) rebookBursts(node string) {
	n := tx.nodes.byID[node]
	if n == nil {
		return
	}
	for _, a := range byID(tx.allocs.onNode[node]) {
		u, booked := tx.Usage(a.ID)
		if booked && len(a.Devices) > 0 && !slices.Equal(u.Takes, tx.takes(a, n)) {
			tx.unbook(a.ID)
			tx.book(tx.usageOf(a))
		}
	}
}

// mayBurst reports whether a task on a node may use more of a GPU than it is promised, or one was
// measured to be used more than expected.
func (r *Reader) mayBurst(n *nomad.Node) bool {
	for i := range n.Plan.GPUs {
		if r.surplus[n.Plan.GPUs[i].ID] > 0 {
			return true
		}
	}
	for _, a := range r.allocs.onNode[n.Plan.ID] {
		for _, d := range a.Devices {
			at, known := n.Links[first(d.IDs)]
			if !known || a.Status != "running" {
				continue
			}
			g := &n.Plan.GPUs[at.GPU]
			if g.Mode == gpu.ModeWhole || g.Mode == gpu.ModeSlice && int64(len(d.IDs)) == g.Slices {
				continue
			}
			promised := promisedOf(g, TakeOf(g, int64(len(d.IDs)), r.Guarantee(a, d.Task)))
			if r.ceiling(a, d.Task, g, promised) > promised {
				return true
			}
		}
	}
	return false
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}
