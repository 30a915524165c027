// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Lifetimes is how long tasks run, as learned from those that have ended. Tasks are
// known by keys, the most telling first: their job, their size, anything. The zero value
// has learned nothing.
type Lifetimes struct {
	runs map[string]*runs
	seen int // ends
}

// runs is how long the last tasks of a key ran, in the order of their ends.
type runs struct {
	last   []time.Duration
	next   int             // of last, to be replaced
	sorted []time.Duration // of last; nil when it is to be sorted again
	seen   int             // the last end
}

// runsKept is how many ends of a key are remembered, runsEnough how many say more than
// the next key, and keysKept how many keys are remembered.
const runsKept, runsEnough, keysKept = 64, 4, 8192

// anything is the key of all tasks.
const anything = "any"

// Keys are what tasks are known by: their kin, such as all children of a job (empty: they have none), how
// much of how many GPUs they hold, in sixteenths, and anything.
func Keys(kin string, gpus int, milli int64) []string {
	keys := []string{fmt.Sprintf("%d x %d", gpus, (milli*16+999)/1000), anything}
	if kin == "" {
		return keys
	}
	return append([]string{kin}, keys...)
}

// Ended notes a task that has run for so long until it ended by itself.
func (l *Lifetimes) Ended(ran time.Duration, keys ...string) {
	if l.runs == nil {
		l.runs = map[string]*runs{}
	}
	l.seen++
	for _, key := range keys {
		r := l.runs[key]
		if r == nil {
			l.forget()
			r = &runs{}
			l.runs[key] = r
		}
		r.seen, r.sorted = l.seen, nil
		if len(r.last) < runsKept {
			r.last = append(r.last, ran)
			continue
		}
		r.last[r.next] = ran
		r.next = (r.next + 1) % runsKept
	}
}

// forget makes room for a key: the keys whose last end is the oldest go, half
// at a time.
func (l *Lifetimes) forget() {
	if len(l.runs) < keysKept {
		return
	}
	var seen []int
	for _, r := range l.runs {
		seen = append(seen, r.seen)
	}
	slices.Sort(seen)
	for key, r := range l.runs {
		if r.seen <= seen[len(seen)/2] {
			delete(l.runs, key)
		}
	}
}

// Remaining is how much longer a task runs: as much as each of some tasks ran beyond its
// age, and no longer than it may.
type Remaining struct {
	runs []time.Duration // in ascending order, all longer than the age
	age  time.Duration
	most time.Duration // 0: no bound
}

// Remaining expects how much longer a task runs that has run for so long, and that says itself
// it runs for so long at most (0: it says nothing). The first key counts for which
// enough have ended, and some that ran longer. A task that has run longer than all of them
// is expected to run for as long again, and one that has run longer than it said as one that has said
// nothing.
func (l *Lifetimes) Remaining(age, limit time.Duration, keys ...string) Remaining {
	age = max(0, age)
	left := Remaining{age: age}
	if limit > age {
		left.most = limit - age
	}
	known := false
	for _, key := range keys {
		r := l.runs[key]
		if r == nil || len(r.last) < runsEnough {
			continue
		}
		known = true
		if left.runs = r.longer(age); len(left.runs) > 0 {
			return left
		}
	}
	if known {
		left.runs = []time.Duration{age + age/4, 2 * age, 4 * age}
	}
	return left
}

// Expected is how long a task runs that waits: as it says itself (0: nothing), but not shorter than half
// of its kin did; else as half of all did at most. 0: not known.
func (l *Lifetimes) Expected(limit time.Duration, kin string) time.Duration {
	ran := l.Remaining(0, 0, kin)
	switch {
	case ran.Known():
		return max(limit, ran.At(0.5))
	case limit > 0:
		return limit
	}
	return l.Remaining(0, 0, anything).At(0.5)
}

// longer is what ran longer than an age, in ascending order.
func (r *runs) longer(age time.Duration) []time.Duration {
	if r.sorted == nil {
		r.sorted = slices.Sorted(slices.Values(r.last))
	}
	at, _ := slices.BinarySearchFunc(r.sorted, age, func(ran, age time.Duration) int { return cmp.Or(cmp.Compare(ran, age), -1) })
	return r.sorted[at:]
}

// Known reports whether anything is known of when the task ends.
func (l Remaining) Known() bool { return len(l.runs) > 0 || l.most > 0 }

// At is how much longer the task runs with a chance, from 0 to 1: the higher, the
// longer. A task with a limit alone ends at any time until then.
func (l Remaining) At(chance float64) time.Duration {
	if len(l.runs) == 0 {
		return time.Duration(chance * float64(l.most))
	}
	left := l.runs[min(len(l.runs)-1, int(chance*float64(len(l.runs))))] - l.age
	if l.most > 0 {
		left = min(left, l.most)
	}
	return left
}
