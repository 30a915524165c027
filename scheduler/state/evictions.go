package state

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// evictions is when work had to go within budgetTime, and which of these times it was for a job of
// the same queue. Those count for such jobs alone: else whoever has his own work evicted by jobs of
// his own would keep it from all others for an hour.
type evictions[K comparable] struct{ all, own map[K][]time.Time }

func newEvictions[K comparable]() evictions[K] {
	return evictions[K]{map[K][]time.Time{}, map[K][]time.Time{}}
}

func (e *evictions[K]) note(key K, at time.Time, own bool) {
	e.all[key] = append(e.all[key], at)
	if own {
		e.own[key] = append(e.own[key], at)
	}
}

// recall takes what an earlier leader did.
func (e *evictions[K]) recall(key K, all, own []time.Time) {
	e.all[key] = all
	if len(own) > 0 {
		e.own[key] = own
	}
}

// forOthers is how often work went for another queue.
func (e *evictions[K]) forOthers(key K) int { return len(e.all[key]) - len(e.own[key]) }

// expire removes what is older than the budget's time, and returns whose.
func (e *evictions[K]) expire(now time.Time) []K {
	expire(e.own, now)
	return expire(e.all, now)
}

// expire removes what is older than the budget's time, and returns whose.
func expire[K comparable](evicted map[K][]time.Time, now time.Time) []K {
	var changed []K
	for key, times := range evicted {
		left := slices.DeleteFunc(slices.Clone(times), func(at time.Time) bool { return now.Sub(at).Abs() >= budgetTime })
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

// byName is a copy with the names of jobs, as it is stored.
func byName(evicted map[nomad.JobKey][]time.Time) map[string][]time.Time {
	named := make(map[string][]time.Time, len(evicted))
	for key, times := range evicted {
		named[key.String()] = slices.Clone(times)
	}
	return named
}

// timesByName is one time for each job, by name.
func timesByName(times map[nomad.JobKey]time.Time) map[string]time.Time {
	named := make(map[string]time.Time, len(times))
	for key, at := range times {
		named[key.String()] = at
	}
	return named
}
