// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// A task whose limit is above its guarantee, or that nothing limits, may burst: use more of a GPU
// than it is promised. What such tasks use is learned here, for placement to expect it of the next
// alloc.

// taskKey names a task of a group, of all children of a periodic or parameterized job alike.
type taskKey struct {
	job         nomad.JobKey
	group, task string
}

func (l *learned) taskKeyOf(key nomad.JobKey, group, task string) taskKey {
	return taskKey{l.jobs.family(key), group, task}
}

// learnedUse is the compute that the allocs of a task use of a GPU.
type learnedUse struct {
	micro int64 // smoothed, in millionths
	told  int64 // in milli, as placement knows it
}

// learned is the compute that tasks use.
type learned struct {
	settings     *settings
	jobs         *jobs
	allocs       *allocs
	books        *books
	measurements *measurements
	byTask       map[taskKey]learnedUse
}

func newLearned(s *settings, j *jobs, a *allocs, b *books, m *measurements) *learned {
	return &learned{settings: s, jobs: j, allocs: a, books: b, measurements: m, byTask: map[taskKey]learnedUse{}}
}

// smoothing is how many measurements a use is smoothed over, about.
const smoothing = 8

// forgetUseAt is at how many tasks those of jobs that are gone are forgotten.
const forgetUseAt = 20_000

// add counts what a task used of a GPU when it was measured last.
func (l *learned) add(key taskKey, milli int64) {
	use, known := l.byTask[key]
	if !known {
		use.micro = 1000 * milli
		if len(l.byTask) >= forgetUseAt {
			maps.DeleteFunc(l.byTask, func(k taskKey, _ learnedUse) bool { return l.jobs.Job(k.job) == nil })
		}
	}
	use.micro += (1000*milli - use.micro) / smoothing
	use.told = l.settings.noticed(use.told, use.micro/1000)
	l.byTask[key] = use
}

// learn learns what a task that runs uses of a GPU, if that was measured after some time.
func (l *learned) learn(a *nomad.Alloc, h *Holding, after time.Time) {
	if h.GPU.Mode == gpu.ModeWhole || h.GPU.HasSeats() {
		return
	}
	use, known := l.measurements.UseOf(a.NodeID, h.GPU.ID, h.Instances[0], h.Alone())
	if !known || use.Milli == view.Unmeasured || !use.At.After(after) {
		return
	}
	promised := promisedOf(h.GPU, place.Take{Milli: h.Milli, Replicas: int64(len(h.Instances))})
	l.add(l.taskKeyOf(a.Key(), a.Group, h.Task), min(use.Milli, l.ceiling(a, h.Task, h.GPU, promised)))
}

// ExpectedUse is the compute of a GPU that a task is expected to use by what its allocs used, not
// above its limit (0: none); 0 where none was measured. It may be less than it is guaranteed.
func (l *learned) ExpectedUse(key nomad.JobKey, group, task string, limit int64) int64 {
	if l.settings.config.Placement.Weights.HeatMilli == 0 {
		return 0
	}
	use := l.byTask[l.taskKeyOf(key, group, task)].told
	if limit > 0 {
		return min(use, limit)
	}
	return use
}

// ceiling is the most compute that a task can use of a GPU, by its promised part.
func (l *learned) ceiling(a *nomad.Alloc, task string, g *place.GPU, promised int64) int64 {
	held := g.Sharing == gpu.SharingMPS || g.Sharing == gpu.SharingHAMi
	limit := int64(0)
	if t := l.jobs.task(a, task); t != nil {
		limit = t.LimitMilli
	}
	switch {
	case held && limit > 0:
		return max(limit, promised)
	case held && g.Mode == gpu.ModeSlice:
		return promised
	}
	return gpu.MilliPerGPU
}

// expectedUse is a task's expected use of a GPU: its promise, or the learned use. Tasks that step aside for each other do not use the GPU at once.
func (l *learned) expectedUse(a *nomad.Alloc, task string, g *place.GPU, promised int64) int64 {
	if g.Mode == gpu.ModeWhole || g.HasSeats() {
		return promised
	}
	use := l.ExpectedUse(a.Key(), a.Group, task, l.ceiling(a, task, g, promised))
	return max(promised, use)
}

// load is what the tasks that run on a GPU are expected to use of it, and can use at most.
type load struct{ expected, most int64 }

// loads is the load of the GPUs of a node that have any.
func (l *learned) loads(node string) map[string]load {
	all := map[string]load{}
	for a := range l.allocs.AllocsOn(node) {
		if len(a.Devices) == 0 || a.Status != "running" {
			continue
		}
		for _, h := range l.books.Holdings(a) {
			promised := promisedOf(h.GPU, place.Take{Milli: h.Milli, Replicas: int64(len(h.Instances))})
			sum := all[h.GPU.ID]
			sum.expected += l.expectedUse(a, h.Task, h.GPU, promised)
			sum.most += l.ceiling(a, h.Task, h.GPU, promised)
			all[h.GPU.ID] = sum
		}
	}
	return all
}

// mayBurst reports whether a task on a node may use more of a GPU than it is promised, or one was
// measured to be used more than expected.
func (l *learned) mayBurst(n *nomad.Node) bool {
	for i := range n.Plan.GPUs {
		if l.measurements.surplusOf(n.Plan.GPUs[i].ID) > 0 {
			return true
		}
	}
	for a := range l.allocs.AllocsOn(n.Plan.ID) {
		for _, d := range a.Devices {
			at, known := n.Slot(first(d.IDs))
			if !known || a.Status != "running" {
				continue
			}
			g := &n.Plan.GPUs[at.GPU]
			if g.Mode == gpu.ModeWhole || g.Mode == gpu.ModeSlice && int64(len(d.IDs)) == g.Slices {
				continue
			}
			promised := promisedOf(g, TakeOf(g, int64(len(d.IDs)), l.jobs.guarantee(a, d.Task)))
			if l.ceiling(a, d.Task, g, promised) > promised {
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
