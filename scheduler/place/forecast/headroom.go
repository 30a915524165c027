// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"math"
	"time"
)

// Arrivals is how often tasks of several whole GPUs arrive, by size and priority, over the
// last few hours.
type Arrivals struct {
	tasks map[sizeAndPriority]float64 // each weighs less the longer ago it came
	span  float64                     // seconds that count, weighed alike
	last  time.Time
}

type sizeAndPriority struct{ gpus, priority int }

// arrivalMemory is how long ago an arrival counts for 1/e.
const arrivalMemory = 2 * time.Hour

// fewestArrivals is how many must count before a size is taken to come again: fewer say
// little of a rate.
const fewestArrivals = 5

// Note counts a task. Times must not go back; one that does counts as the last.
func (a *Arrivals) Note(gpus int, whole bool, priority int, at time.Time) {
	if a.tasks == nil {
		a.tasks, a.last = map[sizeAndPriority]float64{}, at
	}
	if gone := at.Sub(a.last); gone > 0 {
		left := math.Exp(-gone.Seconds() / arrivalMemory.Seconds())
		a.span = a.span*left + (1-left)*arrivalMemory.Seconds()
		for k, n := range a.tasks {
			if a.tasks[k] = n * left; n*left < 0.01 {
				delete(a.tasks, k)
			}
		}
		a.last = at
	}
	if whole && gpus > 1 {
		a.tasks[sizeAndPriority{gpus, priority}]++
	}
}

// PerSecond is how many tasks of that number of GPUs, and of this priority or a higher one, arrive
// per second; 0 where too few have come to say.
func (a *Arrivals) PerSecond(gpus, priority int) float64 {
	n := 0.0
	for k, tasks := range a.tasks {
		if k.gpus == gpus && k.priority >= priority {
			n += tasks
		}
	}
	if n < fewestArrivals || a.span <= 0 {
		return 0
	}
	return n / a.span
}

// Headroom is how many places for tasks of m GPUs are kept from a task of n < m GPUs while
// it can wait, when the large ones arrive at this rate and it waits for H at most:
//
//	R = z·√(2·λ·H) · (1 − n²/m²)
//
// Where tasks end, about as many large tasks end as arrive. Over H the two numbers differ by
// √(2·λ·H), one standard deviation. A place that a small task breaks is whole again only when
// the last task on the node has ended, often hours later. The small task finds a GPU elsewhere
// within seconds, because small tasks end all the time; the larger it is, the longer that takes.
func Headroom(perSecond, z float64, longest time.Duration, n, m int) float64 {
	part := float64(n) / float64(m)
	return z * math.Sqrt(2*perSecond*longest.Seconds()) * (1 - part*part)
}

// LargePlaces says which room is a place for tasks of a size, and which part of these tasks
// could use it.
type LargePlaces struct {
	Part  float64 // of the tasks of this size
	class placeClass
}

// Large is the places for tasks of that number of GPUs on a kind; ok is false where no such task is
// known.
func (pl *Places) Large(kind int32, gpus int64) (large LargePlaces, ok bool) {
	all := 0.0
	for i := range pl.classes {
		c := &pl.classes[i]
		if c.gpus != gpus {
			continue
		}
		all += c.part
		if !c.kinds[kind] {
			continue
		}
		if !ok {
			large.class = placeClass{gpus: gpus, cpu: c.cpu, memory: c.memory, kinds: make([]bool, len(c.kinds))}
			ok = true
		}
		large.Part += c.part
		large.class.cpu, large.class.memory = min(large.class.cpu, c.cpu), min(large.class.memory, c.memory)
		for k, may := range c.kinds {
			large.class.kinds[k] = large.class.kinds[k] || may
		}
	}
	if ok {
		large.Part /= all
	}
	return large, ok
}

// May reports whether such tasks may run on a kind.
func (l *LargePlaces) May(kind int32) bool { return l.class.kinds[kind] }

// On is how many places a pool has now.
func (l *LargePlaces) On(b *Pool) int64 {
	if !l.May(b.Kind) {
		return 0
	}
	return l.class.there(b)
}
