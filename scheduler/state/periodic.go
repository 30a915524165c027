// SPDX-License-Identifier: MPL-2.0

package state

import (
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// launchedBy is the periodic job whose child a job is, by their IDs: Nomad forgets whose child
// a job is when that is registered again. Anyone may give his job such an ID.
func launchedBy(key nomad.JobKey) (parent nomad.JobKey, launched bool) {
	at := strings.LastIndex(key.ID, "/periodic-")
	if at < 0 {
		return nomad.JobKey{}, false
	}
	return nomad.JobKey{Namespace: key.Namespace, ID: key.ID[:at]}, true
}

// Overlaps reports whether a child of a periodic job that prohibits overlap would run beside another
// one.
func (c *Capacity) Overlaps(key nomad.JobKey) bool {
	parent, launched := launchedBy(key)
	if p := c.books.jobs.Job(parent); !launched || p == nil || !p.Periodic || p.Overlaps {
		return false
	}
	for other := range c.books.jobs.launchedFrom(parent) {
		if other != key && (c.disruptions.allocs.anyAlloc(other) || c.anyAssumed(other)) {
			return true
		}
	}
	return false
}
