// SPDX-License-Identifier: MPL-2.0

package state

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
)

// lifetimes is how long work runs.
type lifetimes struct {
	clock  clock
	jobs   *jobs
	allocs *allocs
	ran    forecast.Lifetimes
}

// learn learns from an alloc that ended how long work runs that is like it: from the
// moment that it was given room. Allocs that were stopped, failed or were lost say nothing about that.
func (l *lifetimes) learn(a *nomad.Alloc, takes func(*nomad.Alloc) []place.Take) {
	if a.Stopping || a.Status != api.AllocClientStatusComplete || len(a.Devices) == 0 || !a.Ended.After(a.Created) || !l.jobs.ends(a.Key()) {
		return
	}
	l.ran.Ended(a.Ended.Sub(a.Created), l.keys(a.Key(), a.Group, takes(a))...)
}

// keys are what the lifetimes of a group's allocs are known by that hold so much.
func (l *lifetimes) keys(key nomad.JobKey, group string, takes []place.Take) []string {
	milli := int64(0)
	for _, t := range takes {
		milli = max(milli, t.Milli)
	}
	return forecast.Keys(l.kin(key, group), len(takes), milli)
}

// kin is what the lifetimes of a job's group are known by.
func (l *lifetimes) kin(key nomad.JobKey, group string) string {
	return l.jobs.family(key).String() + "/" + group
}

// Remaining is how much longer the work of a usage is expected to run. That of a service, and
// that of a promise or reservation, is not known to end, unless its author says so.
func (l *lifetimes) Remaining(u *place.Usage) forecast.Remaining {
	a := l.allocs.Alloc(u.ID)
	if a == nil {
		return forecast.Remaining{}
	}
	limit := time.Duration(0)
	if g := l.jobs.group(a.Key(), a.Group); g != nil {
		limit = g.TimeLimit
	}
	return l.remaining(a.Key(), a.Group, u.Takes, l.clock.Now().Sub(a.Created), limit)
}

// RunTime is how long an alloc of a group is expected to run that holds so much, as far as
// its author says (0: nothing) and others like it did.
func (l *lifetimes) RunTime(key nomad.JobKey, group string, limit time.Duration, takes []place.Take) forecast.Remaining {
	return l.remaining(key, group, takes, 0, limit)
}

func (l *lifetimes) remaining(key nomad.JobKey, group string, takes []place.Take, age, limit time.Duration) forecast.Remaining {
	if !l.jobs.ends(key) {
		return (&forecast.Lifetimes{}).Remaining(age, limit)
	}
	return l.ran.Remaining(age, limit, l.keys(key, group, takes)...)
}

// expected is how long an alloc of a group that waits runs, as its author says (0: nothing) or as others
// did. 0: not known, or it is not known to end.
func (l *lifetimes) expected(key nomad.JobKey, group string, limit time.Duration) time.Duration {
	if !l.jobs.ends(key) {
		return limit
	}
	return l.ran.Expected(limit, l.kin(key, group))
}
