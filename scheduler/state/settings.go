// SPDX-License-Identifier: MPL-2.0

package state

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// settings is the configuration, and what follows from it alone.
type settings struct{ config *config.Config }

// Config is the configuration, which must not be changed.
func (s *settings) Config() *config.Config { return s.config }

// IsWithin reports whether a queue is another or lies below it.
func (s *settings) IsWithin(queue, top string) bool {
	for q := s.config.Queue(queue); q != nil; q = s.config.Queue(q.Parent) {
		if q.Name == top {
			return true
		}
	}
	return false
}

// ShareLimit reports whether what one queue holds counts for a limit of the other.
func (s *settings) ShareLimit(x, y string) bool { return s.SharedLimit(x, y) != "" }

// SharedLimit is the lowest queue whose limit bounds both; empty where none does.
func (s *settings) SharedLimit(x, y string) string {
	for q := s.config.Queue(x); q != nil; q = s.config.Queue(q.Parent) {
		milli, memory := q.Limit()
		if (milli > 0 || memory > 0) && s.IsWithin(y, q.Name) {
			return q.Name
		}
	}
	return ""
}

// Leaves selects the work that ends before a group with a priority, of a job that waits,
// has to give up: work that ends by itself or already, and work that may be evicted for it, also once it has
// come to the room that it is promised.
func (s *settings) Leaves(priority int, own nomad.JobKey) func(*place.Usage) bool {
	preempts := s.config.Preemption.Enabled
	return func(u *place.Usage) bool {
		if len(u.Takes) == 0 || u.Job == own.ID && u.Namespace == own.Namespace {
			return false
		}
		if u.Ends {
			return true
		}
		if !preempts || u.Pinned && !isAssumed(u) || u.Priority >= priority {
			return false
		}
		q := s.config.Queue(u.Queue)
		return q == nil || !q.Protected
	}
}

// noticed is an amount in milli as placement comes to know it: in steps of the threshold, and as
// before while it changed by less.
func (s *settings) noticed(before, now int64) int64 {
	step := max(1, s.config.ChangeThresholdMilli)
	if distance(before, now) < step {
		return before
	}
	return now / step * step
}
