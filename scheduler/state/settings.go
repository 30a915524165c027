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

// Leaves selects the work that ends before a group with a priority, of a job that waits,
// has to give up: work that ends by itself or already, and work that may be evicted for it, also once it has
// come to the room that it is promised.
func Leaves(c *config.Config, priority int, own nomad.JobKey) func(*place.Usage) bool {
	preempts := c.Preemption.Enabled
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
		q := c.Queue(u.Queue)
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
