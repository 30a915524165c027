// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/turns"
)

// Bounds is how long anyone waited behind others in a replay, and how often work had to
// go. All of the time counts, also that after the last arrival, and waits until they end.
type Bounds struct {
	Sizes []Behind // by size, then by priority
	// Owed is how long queues waited for what fitted into their guarantee. By queue, then by size.
	Owed []Owed
	// Unserved is how many tasks still waited when nothing ran any more.
	Unserved int
	// MostEvictions is how often one task was evicted at most, and MostInAnHour within an hour.
	MostEvictions, MostInAnHour int
	// LongestChain is the longest row of evictions, each for a task that had just been evicted
	// itself, and LongestHandover the most by which room went from task to task.
	LongestChain, LongestHandover int
	// LostPercent is the part of all work done that evictions threw away.
	LostPercent float64
}

// Behind is how long the tasks of a size and priority waited. A task that was evicted
// counts again.
type Behind struct {
	Size     Class
	Priority int
	Wait     Wait
	// Overtaken is how many of them waited while a task started that came later in the order, and
	// LongestBehind how long one waited at most from then until it started itself.
	Overtaken     int
	LongestBehind float64
	// LongestFirst is for how long one was the first of all that waited, at most.
	LongestFirst float64
}

// Owed is how long a queue waited for its own guarantee, in tasks of a size.
type Owed struct {
	Queue string
	Size  Class
	// Wait is from when tasks asked for it until they started, and Late the part of that time in
	// which there was work that was to give it up, also if it was spared for now. In the rest no queue
	// had lent what would have been enough.
	Wait, Late Wait
}

type owed struct {
	queue string
	size  Class
}

// owedTimes are the waits of tasks for their queue's own guarantee.
type owedTimes struct{ wait, late waitTimes }

// watch measures bounds during a replay.
type watch struct {
	l         *live
	since     []float64 // by task: when it began to wait this time
	overtaken []float64 // when something else went ahead of it first; -1: nothing has
	first     []float64 // for how long it has been the first of all that wait
	asks      []float64 // since when its queue is owed the request; -1: it is not
	late      []float64 // for how long of that there was work that was to give it up
	due       []bool    // there is now
	evicted   [][]time.Time
	chain     []int // of a task that waits: how many evictions made it wait, one for the other
	handover  []int // of a task that runs: how many evictions gave it its room, one after the other

	waited map[[2]int][]float64 // by size and priority
	behind map[[2]int]*Behind
	owed   map[owed]*owedTimes
	result Bounds
}

func newWatch(l *live) *watch {
	n := len(l.tasks)
	return &watch{
		l: l, since: make([]float64, n), overtaken: make([]float64, n), first: make([]float64, n), asks: make([]float64, n),
		late: make([]float64, n), due: make([]bool, n), evicted: make([][]time.Time, n), chain: make([]int, n), handover: make([]int, n),
		waited: map[[2]int][]float64{}, behind: map[[2]int]*Behind{}, owed: map[owed]*owedTimes{},
	}
}

// waits notes that a task begins to wait.
func (w *watch) waits(i int) {
	w.since[i], w.overtaken[i], w.asks[i], w.first[i], w.handover[i] = w.l.now, -1, -1, 0, 0
	w.asksFor(i, map[chance]bool{})
}

// asksFor notes since when a task is owed its request, and whether it is late. It remembers
// that for others with the same chances.
func (w *watch) asksFor(i int, late map[chance]bool) {
	t := &w.l.tasks[i]
	r := w.l.request(i)
	if w.due[i] = false; t.GPUs == 0 || !w.l.planned.Planner.Owns(&r) {
		w.asks[i] = -1
		return
	}
	if w.asks[i] < 0 {
		w.asks[i], w.late[i] = w.l.now, 0
	}
	c := chance{keyOf(t), t.Gang, t.Queue, t.Priority}
	due, known := late[c]
	if !known {
		due = w.l.planned.Planner.Reclaims(&r, w.l.clock())
		late[c] = due
	}
	w.due[i] = due
}

// passes notes that time goes by until then.
func (w *watch) passes(to float64) {
	if len(w.l.waiting) > 0 {
		w.first[w.l.waiting[0]] += to - w.l.now
	}
	for _, i := range w.l.waiting {
		if w.due[i] {
			w.late[i] += to - w.l.now
		}
	}
}

// begins notes that a task starts, ahead of some that have an earlier turn.
func (w *watch) begins(i int) {
	for _, j := range w.l.passed {
		if w.overtaken[j] < 0 {
			w.overtaken[j] = w.l.now
		}
	}
	t := &w.l.tasks[i]
	key := [2]int{int(ClassOf(t)), t.Priority}
	b := w.behind[key]
	if b == nil {
		b = &Behind{Size: ClassOf(t), Priority: t.Priority}
		w.behind[key] = b
	}
	w.waited[key] = append(w.waited[key], w.l.now-w.since[i])
	if w.overtaken[i] >= 0 {
		b.Overtaken++
		b.LongestBehind = max(b.LongestBehind, w.l.now-w.overtaken[i])
	}
	b.LongestFirst = max(b.LongestFirst, w.first[i])
	if w.asks[i] >= 0 {
		of := owed{t.Queue, ClassOf(t)}
		if w.owed[of] == nil {
			w.owed[of] = &owedTimes{}
		}
		w.owed[of].wait = append(w.owed[of].wait, w.l.now-w.asks[i])
		w.owed[of].late = append(w.owed[of].late, w.late[i])
	}
	w.chain[i] = 0
}

// went notes that tasks had to go for another one.
func (w *watch) went(victims []int, by int) {
	now, r := w.l.clock(), &w.result
	for _, j := range victims {
		w.evicted[j] = append(w.evicted[j], now)
		w.chain[j] = w.chain[by] + 1
		w.handover[by] = max(w.handover[by], w.handover[j]+1)
		last := slices.IndexFunc(w.evicted[j], func(at time.Time) bool { return now.Sub(at) < turns.BudgetTime })
		r.MostEvictions, r.MostInAnHour = max(r.MostEvictions, len(w.evicted[j])), max(r.MostInAnHour, len(w.evicted[j])-last)
		r.LongestChain = max(r.LongestChain, w.chain[j])
	}
	r.LongestHandover = max(r.LongestHandover, w.handover[by])
	for _, j := range victims {
		w.waits(j)
	}
}

// sum sums up the measurements.
func (w *watch) sum() *Bounds {
	r := &w.result
	for key, b := range w.behind {
		b.Wait = waitTimes(w.waited[key]).sum()
		r.Sizes = append(r.Sizes, *b)
	}
	slices.SortFunc(r.Sizes, func(a, b Behind) int { return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Priority, b.Priority)) })
	for of, times := range w.owed {
		r.Owed = append(r.Owed, Owed{of.queue, of.size, times.wait.sum(), times.late.sum()})
	}
	slices.SortFunc(r.Owed, func(a, b Owed) int { return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Size, b.Size)) })
	r.Unserved = len(w.l.waiting)
	lost, done := float64(w.l.result.LostMilliS), float64(w.l.result.DoneMilliS)
	r.LostPercent = 100 * lost / max(1, lost+done)
	return r
}
