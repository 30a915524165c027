// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"slices"
	"time"
)

// DriverCounts is what the task driver did since the machine booted. The driver has no
// port: it writes them into a state file, and the device plugin serves them as metrics.
type DriverCounts struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"`
	// Starts counts starts of tasks by what came of them: StartDone, StartStopped, or the
	// step that failed.
	Starts     map[string]int64 `json:"starts"`
	StartTimes Durations        `json:"start_times"` // of those that were done
	// Pulls counts images that were fetched from a registry, by PullDone and PullFailed.
	Pulls     map[string]int64 `json:"pulls"`
	PullTimes Durations        `json:"pull_times"`
	// Kills counts tasks that the watchdog killed, by reason.
	Kills map[string]int64 `json:"kills"`
}

// What comes of starts and of pulls.
const (
	StartDone    = "started"
	StartStopped = "stopped" // before it was done
	PullDone     = "pulled"
	PullFailed   = "failed"
)

// NewDriverCounts are those of a driver that did nothing yet. What matters most is zero from
// the start, so that its first increase is seen.
func NewDriverCounts() DriverCounts {
	return DriverCounts{Starts: map[string]int64{StartDone: 0}, Pulls: map[string]int64{PullDone: 0, PullFailed: 0}, Kills: map[string]int64{}}
}

// Plus adds what others counted.
func (c DriverCounts) Plus(o DriverCounts) DriverCounts {
	sum := NewDriverCounts()
	for _, one := range []DriverCounts{c, o} {
		for to, from := range map[*map[string]int64]map[string]int64{&sum.Starts: one.Starts, &sum.Pulls: one.Pulls, &sum.Kills: one.Kills} {
			for name, n := range from {
				(*to)[name] += n
			}
		}
		sum.StartTimes.merge(one.StartTimes)
		sum.PullTimes.merge(one.PullTimes)
	}
	return sum
}

// Durations counts how long something took. The zero Durations is empty.
type Durations struct {
	// Buckets are how many took at most as long as each of DurationBounds, and longer than
	// the one before; the last are those that took longer than all.
	Buckets []int64 `json:"buckets"`
	Seconds float64 `json:"seconds"` // of all together
}

// DurationBounds are the bounds of durations, in seconds.
var DurationBounds = []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800}

// Add counts one.
func (d *Durations) Add(took time.Duration) {
	if len(d.Buckets) != len(DurationBounds)+1 {
		d.Buckets = make([]int64, len(DurationBounds)+1)
	}
	at, _ := slices.BinarySearch(DurationBounds, took.Seconds())
	d.Buckets[at]++
	d.Seconds += took.Seconds()
}

// merge adds others. Those of a release with other bounds are left out.
func (d *Durations) merge(o Durations) {
	if len(o.Buckets) != len(DurationBounds)+1 {
		return
	}
	if len(d.Buckets) == 0 {
		d.Buckets = make([]int64, len(o.Buckets))
	}
	for at, n := range o.Buckets {
		d.Buckets[at] += n
	}
	d.Seconds += o.Seconds
}

// Cumulative is how many there are in all, and how many took at most as long as each bound.
func (d *Durations) Cumulative() (all uint64, within map[float64]uint64) {
	within = map[float64]uint64{}
	for at, n := range d.Buckets {
		all += uint64(n)
		if at < len(DurationBounds) {
			within[DurationBounds[at]] = all
		}
	}
	return all, within
}
