// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"slices"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/outlook"
)

// Calibration is how often estimates of starts were right. Estimates of what never started
// until the last arrival count where they were for before it: as too soon.
type Calibration struct {
	Estimates int
	Unknown   int     // of them said nothing
	Sooner    float64 // percent that started sooner than the range
	Within    float64 // and within it
	Later     float64
	// LikelyOff is by how many seconds the likely start was off in the median, and Width
	// how many seconds ranges were wide.
	LikelyOff, Width float64
}

// foresight estimates starts during a replay.
type foresight struct {
	l         *live
	lifetimes forecast.Lifetimes
	last      int // of those that have begun to wait, plus one
	waited    int
	made      []guess
	open      map[int]int // positions in made of tasks that have not started
	past      outlook.Calibration
}

// guess is an estimate for a task, made at its arrival, and the range that was told.
type guess struct {
	task      int
	estimated outlook.Outlook
	outlook.Outlook
}

func newForesight(l *live) *foresight { return &foresight{l: l, open: map[int]int{}} }

// started learns from how far an estimate was off.
func (f *foresight) started(i int) {
	if at, found := f.open[i]; found {
		g := &f.made[at]
		f.past.Learn(g.estimated, g.Outlook, seconds64(f.l.now-f.l.tasks[i].ArriveSecond))
		delete(f.open, i)
	}
}

// lifeKeys are what the lifetimes of a task are learned by.
func lifeKeys(t *Task) []string { return forecast.Keys("", t.GPUs, t.GPUMilli) }

func seconds64(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (f *foresight) ended(t *Task) {
	if f.l.learned != nil {
		t = f.l.learned(t)
	}
	if t != nil {
		f.lifetimes.Ended(seconds64(t.RunSeconds), lifeKeys(t)...)
	}
}

// remaining is how much longer a task runs that has run for so long.
func (f *foresight) remaining(t *Task, age time.Duration) forecast.Remaining {
	limit := seconds64(t.LimitSeconds)
	if f.l.limit != nil {
		limit = f.l.limit(t)
	}
	return f.lifetimes.Remaining(age, limit, lifeKeys(t)...)
}

// look estimates when the last task starts, if it has just begun to wait.
func (f *foresight) look() {
	if waiting := f.l.waiting; len(waiting) > 0 && waiting[len(waiting)-1] >= f.last {
		f.last = waiting[len(waiting)-1] + 1
		f.estimate(f.last - 1)
	}
}

// mostWaiters is how many of those that wait are looked at, the first.
const mostWaiters = 64

// estimate estimates when a task starts that has just begun to wait.
func (f *foresight) estimate(i int) {
	if f.waited++; f.waited%f.l.Outlook != 0 {
		return
	}
	if len(f.l.waiting) > mostWaiters { // as in the service, nothing is said of those behind
		f.made = append(f.made, guess{task: i})
		return
	}
	var waiting []outlook.Waiter
	for _, j := range f.l.waiting {
		t := &f.l.tasks[j]
		waiting = append(waiting, outlook.Waiter{Request: RequestOf(t, ""), Left: f.remaining(t, 0)})
	}
	now := f.l.clock()
	all := outlook.Foresee(f.l.planned.Snapshot, waiting, func(u *place.Usage) forecast.Remaining {
		j, err := strconv.Atoi(u.ID)
		if err != nil {
			return forecast.Remaining{}
		}
		return f.remaining(&f.l.tasks[j], now.Sub(u.Start))
	}).Outlook()
	estimated := all[len(all)-1]
	f.open[i] = len(f.made)
	f.made = append(f.made, guess{i, estimated, f.past.Correct(estimated)})
}

// judge compares the estimates with what happened.
func (f *foresight) judge() *Calibration {
	c := &Calibration{Estimates: len(f.made)}
	var off, width []float64
	for _, g := range f.made {
		if !g.Known {
			c.Unknown++
			continue
		}
		start := &f.l.result.Starts[g.task]
		waited := seconds64(start.Second - f.l.tasks[g.task].ArriveSecond)
		if start.Spot.Node < 0 {
			waited = seconds64(f.l.end - f.l.tasks[g.task].ArriveSecond)
			if waited <= g.Latest {
				c.Estimates-- // it is unknown
				continue
			}
		}
		switch {
		case waited < g.Soonest:
			c.Sooner++
		case waited > g.Latest:
			c.Later++
		default:
			c.Within++
		}
		off = append(off, max(waited-g.Likely, g.Likely-waited).Seconds())
		width = append(width, (g.Latest - g.Soonest).Seconds())
	}
	if len(off) == 0 {
		return c
	}
	slices.Sort(off)
	slices.Sort(width)
	part := 100 / float64(len(off))
	c.Sooner, c.Within, c.Later = c.Sooner*part, c.Within*part, c.Later*part
	c.LikelyOff, c.Width = off[len(off)/2], width[len(width)/2]
	return c
}
