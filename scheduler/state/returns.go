// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// failed is an alloc that failed, in place of which Nomad starts another: at a later time
// (see reschedule in the job specification), or at once, which is unknown until it has.
type failed struct {
	alloc *nomad.Alloc
	cost  place.Charge
	since time.Time // when it was seen to have failed
}

// returns are the allocs that failed and that Nomad starts again.
type returns struct {
	clock    clock
	jobs     *jobs
	allocs   *allocs
	promises *promises
	records  *records
	byID     map[string]failed
}

func newReturns(c clock, j *jobs, a *allocs, p *promises, r *records) *returns {
	return &returns{clock: c, jobs: j, allocs: a, promises: p, records: r, byID: map[string]failed{}}
}

// note remembers an alloc that ended if Nomad starts another in its place, and
// forgets one in whose place it has. Its cost to the queue is asked for once.
func (l *returns) note(a *nomad.Alloc, cost func(*nomad.Alloc) place.Charge) {
	g := l.jobs.group(a.Key(), a.Group)
	if !a.Failed || len(a.Devices) == 0 || g == nil || !g.Restarts {
		l.forget(a.ID)
		return
	}
	f, known := l.byID[a.ID]
	if !known {
		f.cost, f.since = cost(a), l.clock.Now()
	}
	f.alloc = a
	l.byID[a.ID] = f
}

// forget forgets an alloc, if it failed.
func (l *returns) forget(id string) { delete(l.byID, id) }

// forgetJob forgets what failed of a job.
func (l *returns) forgetJob(key nomad.JobKey) {
	maps.DeleteFunc(l.byID, func(_ string, f failed) bool { return f.alloc.Key() == key })
}

// forgetLate forgets failed allocs that Nomad has not started again in time, and
// reports whether anything did.
func (l *returns) forgetLate() bool {
	before := len(l.byID)
	maps.DeleteFunc(l.byID, func(_ string, f failed) bool {
		return l.jobs.Job(f.alloc.Key()) == nil || !f.alloc.Returns && !l.clock.Within(f.since, Echo)
	})
	return len(l.byID) < before
}

// Returning is what failed and Nomad starts again, in no order: as many allocs of a group as are
// not there and do not wait for room, of a job that is not stopped and a group that is not held.
// Their turns are compared with none, so they need no [quota.Turn.Later]: Nomad starts them, and what
// finds no room waits with a turn of its own.
func (l *returns) Returning() []*Waiting {
	if len(l.byID) == 0 {
		return nil
	}
	type group struct {
		job  nomad.JobKey
		name string
	}
	of := map[group]*Waiting{}
	var list []*Waiting
	for _, f := range l.byID {
		at := group{f.alloc.Key(), f.alloc.Group}
		w := of[at]
		if w == nil {
			w = &Waiting{Job: at.job, Group: at.name}
			of[at] = w
			if j := l.jobs.Job(at.job); j != nil && !j.Stopped && j.Group(at.name) != nil && j.Group(at.name).Restarts && !l.records.isHeld(at.job, at.name) {
				w.Turn = turn(at.job, at.name, j.Priority, l.jobs.QueueOf(at.job, at.name), f.since)
				list = append(list, w)
			}
		}
		w.Missing++
		w.cost = w.cost.Larger(f.cost)
	}
	there := map[nomad.JobKey]map[string]int{}
	for _, w := range list {
		if there[w.Job] == nil {
			there[w.Job] = l.allocs.present(w.Job)
		}
		// Those that wait for room are often the same as those that are promised.
		absent := l.jobs.group(w.Job, w.Group).Count - there[w.Job][w.Group] - max(l.jobs.Blocked(w.Job).Allocs(w.Group), l.promises.Assumed(w.Job, w.Group))
		w.Missing = min(w.Missing, max(0, absent))
	}
	return list
}
