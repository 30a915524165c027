// SPDX-License-Identifier: MPL-2.0

package sim

import "slices"

// LiveResult is what a replay with departures measured. Used, lost and waits,
// unless All counts, leave out the first third of the time until the last arrival: the cluster
// fills up then.
type LiveResult struct {
	Started  int
	Finished int
	Never    int // tasks that had not started at the last arrival
	// Impossible is how many of these no node could hold even when empty. The product
	// refuses them at submission, so they do not count among waits.
	Impossible int
	Evictions  int
	LostMilliS int64 // work thrown away by evictions, GPU milli-seconds
	DoneMilliS int64 // work finished, GPU milli-seconds
	// UsedPercent is the mean allocation over time.
	UsedPercent float64
	// LostPercent is the part of the GPU work offered that never started.
	LostPercent float64
	Classes     map[Class]ClassResult
	Priorities  map[int]Wait
	Queues      map[string]Wait
	// Fairness is Jain's index over the queues' work done per guarantee: 1 when
	// all got the same part of their guarantee.
	Fairness float64
	Speed    Speed
	// Outlook is how the estimates turned out; nil without.
	Outlook *Calibration `json:",omitempty"`
	// Bounds are how long anyone waited behind others; nil without limits.
	Bounds   *Bounds  `json:",omitempty"`
	Timeline []Moment `json:"-"`
	Starts   []Start  `json:"-"` // per task
}

// ClassResult is what happened to the tasks of one size.
type ClassResult struct {
	BlockedPercent float64 // of the work offered
	Wait           Wait    // with Queue; a task that never started has waited until the last arrival
}

// Start is when and where a task started; Spot.Node is -1 when it never did.
type Start struct {
	Second float64
	Spot   Spot
}

// Moment is the state of a live replay at a time.
type Moment struct {
	Second    float64
	UsedMilli int64
	ByQueue   map[string]int64 // GPU milli held
	Waiting   int              // tasks
}

// Class is a size of task.
type Class int

// The classes of the protocol, by whole or part GPUs asked for.
const (
	ClassCPU   Class = iota // none
	ClassOne                // one, or a part of one
	ClassSome               // 2 to 4
	ClassLarge              // more
	classes
)

// String names the number of GPUs.
func (c Class) String() string { return [classes]string{"cpu", "1", "2-4", "8"}[c] }

// MarshalText makes the name the key in JSON.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// ClassOf is the class of a task.
func ClassOf(t *Task) Class {
	switch {
	case t.GPUs == 0:
		return ClassCPU
	case t.GPUs == 1:
		return ClassOne
	case t.GPUs <= 4:
		return ClassSome
	}
	return ClassLarge
}

// summarize sums up the measurements.
func (l *live) summarize() {
	r := &l.result
	r.Never = len(l.tasks) - r.Started
	r.UsedPercent = 100 * l.area / max(1, l.end-l.from) / float64(max(1, l.capacity))
	w := l.work()
	var all, lost float64
	for c := range classes {
		if c != ClassCPU {
			all, lost = all+w.offered[c], lost+w.blocked[c]
		}
		if w.offered[c] > 0 || len(w.waits[c]) > 0 {
			r.Classes[c] = ClassResult{BlockedPercent: 100 * w.blocked[c] / max(1, w.offered[c]), Wait: w.waits[c].sum()}
		}
	}
	r.LostPercent = 100 * lost / max(1, all)
	for k, waits := range w.byPriority {
		r.Priorities[k] = waits.sum()
	}
	for k, waits := range w.byQueue {
		sum := waits.sum()
		sum.DoneMilliS = r.Queues[k].DoneMilliS
		r.Queues[k] = sum
	}
	var parts []float64
	for _, q := range l.Quotas {
		if w, ok := r.Queues[q.Name]; ok && q.GuaranteeMilli > 0 {
			parts = append(parts, float64(w.DoneMilliS)/float64(q.GuaranteeMilli))
		}
	}
	r.Fairness = jain(parts)
	r.Speed = speedOf(l.spent)
	if l.outlook != nil {
		r.Outlook = l.outlook.judge()
	}
}

// workload is what tasks asked for, what of that never started, and how long they waited.
type workload struct {
	offered, blocked [classes]float64
	waits            [classes]waitTimes
	byPriority       map[int]waitTimes
	byQueue          map[string]waitTimes
}

// work goes through the tasks that count. What no node could hold even when empty is only
// counted.
func (l *live) work() workload {
	w := workload{byPriority: map[int]waitTimes{}, byQueue: map[string]waitTimes{}}
	impossible := l.impossible()
	for i := range l.tasks {
		t, s := &l.tasks[i], &l.result.Starts[i]
		if t.ArriveSecond < l.from {
			continue
		}
		work := float64(t.Demand()) * t.RunSeconds
		if t.GPUs == 0 {
			work = float64(t.CPUMilli) * t.RunSeconds
		}
		c := ClassOf(t)
		w.offered[c] += work
		wait := s.Second - t.ArriveSecond
		if s.Spot.Node < 0 {
			w.blocked[c] += work
			wait = l.end - t.ArriveSecond
		}
		if s.Spot.Node < 0 && impossible(t) {
			l.result.Impossible++
			continue
		}
		w.waits[c] = append(w.waits[c], wait)
		w.byPriority[t.Priority] = append(w.byPriority[t.Priority], wait)
		w.byQueue[t.Queue] = append(w.byQueue[t.Queue], wait)
	}
	return w
}

// impossible reports of tasks whether no node could hold them even when empty.
func (l *live) impossible() func(t *Task) bool {
	known := map[taskKey]bool{}
	return func(t *Task) bool {
		key := keyOf(t)
		never, found := known[key]
		if !found {
			never = !slices.ContainsFunc(l.empty.nodes, func(m machine) bool { return m.fits(t) })
			known[key] = never
		}
		return never
	}
}

// Wait sums up waiting times in seconds, from arrival to the first start. P99 is by nearest
// rank: at least 99 of 100 tasks waited no longer. P95 is the one before it in a small
// sample, as the program counts that the figures of docs/design/placement-study.md are checked with.
type Wait struct {
	Tasks                   int
	Mean, P95, P99, Longest float64
	DoneMilliS              int64 `json:",omitempty"`
}

type waitTimes []float64

func (w waitTimes) sum() Wait {
	if len(w) == 0 {
		return Wait{}
	}
	slices.Sort(w)
	sum := 0.0
	for _, s := range w {
		sum += s
	}
	n := len(w)
	return Wait{Tasks: n, Mean: sum / float64(n), P95: w[(n-1)*95/100], P99: w[nearestRank(n, 99)], Longest: w[n-1]}
}

// nearestRank is the index of a percentile in n values in ascending order: of the
// first that at least percent of them do not exceed.
func nearestRank(n, percent int) int { return (n*percent+99)/100 - 1 }

// jain is Jain's fairness index: (Σx)² / (n·Σx²).
func jain(xs []float64) float64 {
	var sum, squares float64
	for _, x := range xs {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(xs)) * squares)
}
