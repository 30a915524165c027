// SPDX-License-Identifier: MPL-2.0

package turns

import (
	"slices"
	"time"
)

// BudgetTime is the time in which evictions are counted.
const BudgetTime = time.Hour

// Evictions is when work had to go within [BudgetTime], by job or by queue, and which of these
// times it was for a job of the same queue. Those count for such jobs alone: else whoever has
// his own work evicted by jobs of his own would keep it from all others for an hour.
type Evictions[K comparable] struct{ all, own map[K][]time.Time }

// NewEvictions has counted nothing yet.
func NewEvictions[K comparable]() Evictions[K] {
	return Evictions[K]{map[K][]time.Time{}, map[K][]time.Time{}}
}

// Note counts an eviction, with own for a job of the same queue.
func (e *Evictions[K]) Note(key K, at time.Time, own bool) {
	e.all[key] = append(e.all[key], at)
	if own {
		e.own[key] = append(e.own[key], at)
	}
}

// Recall takes earlier counts, all evictions of one and those for the own queue.
func (e *Evictions[K]) Recall(key K, all, own []time.Time) {
	e.all[key] = all
	if len(own) > 0 {
		e.own[key] = own
	}
}

// All is all counted evictions, and Own those for the own queue. They must not be changed.
func (e *Evictions[K]) All() map[K][]time.Time { return e.all }

// Own is the counted evictions for the own queue.
func (e *Evictions[K]) Own() map[K][]time.Time { return e.own }

// Empty reports whether nothing is counted.
func (e *Evictions[K]) Empty() bool { return len(e.all) == 0 }

// Left reports whether one bears another eviction where most are allowed: for a queue that
// is not its own, or with own for its own.
func (e *Evictions[K]) Left(key K, most int, own bool) bool {
	if own {
		return len(e.all[key]) < most
	}
	return len(e.all[key])-len(e.own[key]) < most
}

// Expire removes evictions older than [BudgetTime], and returns whose.
func (e *Evictions[K]) Expire(now time.Time) []K {
	expire(e.own, now)
	return expire(e.all, now)
}

func expire[K comparable](evicted map[K][]time.Time, now time.Time) []K {
	var changed []K
	for key, times := range evicted {
		left := slices.DeleteFunc(slices.Clone(times), func(at time.Time) bool { return now.Sub(at).Abs() >= BudgetTime })
		if len(left) == len(times) {
			continue
		}
		if evicted[key] = left; len(left) == 0 {
			delete(evicted, key)
		}
		changed = append(changed, key)
	}
	return changed
}
