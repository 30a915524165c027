// SPDX-License-Identifier: MPL-2.0

package state

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

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
