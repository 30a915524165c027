// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/turns"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// budgetTime is the time in which evictions of a job are counted.
const budgetTime = turns.BudgetTime

// disruptions are the actions on running work, and on queues, within budgetTime, which decide what
// more may be done.
type disruptions struct {
	clock    clock
	settings *settings
	jobs     *jobs
	allocs   *allocs
	evicted  turns.Evictions[nomad.JobKey] // of jobs
	byQueue  turns.Evictions[string]       // the same, of all jobs of a queue
	moved    map[nomad.JobKey]time.Time    // when work of a job was moved last
	idle     map[nomad.JobKey]time.Time    // when work of a job was evicted last since it did not use its GPUs
}

func newDisruptions(c clock, s *settings, j *jobs, a *allocs) *disruptions {
	return &disruptions{clock: c, settings: s, jobs: j, allocs: a, evicted: turns.NewEvictions[nomad.JobKey](), byQueue: turns.NewEvictions[string](), moved: map[nomad.JobKey]time.Time{}, idle: map[nomad.JobKey]time.Time{}}
}

// noteMoveOrIdle keeps when work of a job was moved, or evicted since it did not use its GPUs.
func (d *disruptions) noteMoveOrIdle(e *view.Event) {
	key := nomad.JobKey{Namespace: e.Namespace, ID: e.JobID}
	switch {
	case e.DryRun, e.Failed:
	case e.Kind == "move":
		d.moved[key] = e.At
	case e.Kind == "idle":
		d.idle[key] = e.At
	}
}

// noteEviction counts that an alloc of a job had to go for another job, and returns the queue that
// counts it too; empty: none.
func (d *disruptions) noteEviction(e *view.Event) (queue string) {
	key := nomad.JobKey{Namespace: e.Namespace, ID: e.JobID}
	own := false
	if a := d.allocs.Alloc(e.AllocID); a != nil {
		if q := d.jobs.QueueOf(key, a.Group); q != nil {
			own, queue = d.jobs.paysFor(q, ParseKey(e.For)), q.Name
			d.byQueue.Note(queue, e.At, own)
		}
	}
	d.evicted.Note(key, e.At, own)
	return queue
}

// recall takes what earlier leaders did.
func (d *disruptions) recall(stored *record.History) {
	for name, times := range stored.Evicted {
		d.evicted.Recall(ParseKey(name), times, stored.EvictedOwn[name])
	}
	for queue, times := range stored.EvictedQueues {
		d.byQueue.Recall(queue, times, stored.EvictedQueuesOwn[queue])
	}
	for name, at := range stored.Moved {
		d.moved[ParseKey(name)] = at
	}
	for name, at := range stored.Idle {
		d.idle[ParseKey(name)] = at
	}
}

// store writes all of it for the next leader.
func (d *disruptions) store(to *record.History) {
	to.Evicted, to.EvictedOwn = byName(d.evicted.All()), byName(d.evicted.Own())
	to.EvictedQueues, to.EvictedQueuesOwn = maps.Clone(d.byQueue.All()), maps.Clone(d.byQueue.Own())
	to.Moved, to.Idle = timesByName(d.moved), timesByName(d.idle)
}

// expire forgets disruptions older than the budget's time, and returns the jobs and queues whose
// evictions do not count any more.
func (d *disruptions) expire() (jobs []nomad.JobKey, queues []string) {
	maps.DeleteFunc(d.moved, func(key nomad.JobKey, _ time.Time) bool { return !d.Moved(key) })
	maps.DeleteFunc(d.idle, func(key nomad.JobKey, _ time.Time) bool { return !d.WasIdle(key) })
	return d.evicted.Expire(d.clock.Now()), d.byQueue.Expire(d.clock.Now())
}

// Moved reports whether work of a job was moved within the last hour.
func (d *disruptions) Moved(key nomad.JobKey) bool {
	return d.clock.Within(d.moved[key], budgetTime)
}

// WasIdle reports whether work of a job was evicted within the last hour since it did not use
// its GPUs.
func (d *disruptions) WasIdle(key nomad.JobKey) bool {
	return d.clock.Within(d.idle[key], budgetTime)
}

// BudgetLeft reports whether work bears another eviction for a queue that is not its own, or with
// own for its own.
func (d *disruptions) BudgetLeft(a *nomad.Alloc, own bool) bool {
	most := &d.settings.config.Preemption
	if d.evicted.Empty() && d.byQueue.Empty() {
		return true
	}
	q := d.jobs.QueueOf(a.Key(), a.Group)
	return d.evicted.Left(a.Key(), most.MaxPerJob, own) && (q == nil || d.byQueue.Left(q.Name, most.MaxPerQueue, own))
}

// Evictable reports whether an alloc may have to make room for another. What Nomad does
// not let be changed cannot be kept off the room that it gave, and would take it back. While
// canaries of its group wait for promotion, none does: the change that keeps the
// group off its node would end the deployment, and with it the choice whether the
// new version is to replace the old one.
func (d *disruptions) Evictable(a *nomad.Alloc) bool {
	return d.allocs.Stoppable(a) && !d.jobs.Unchangeable(a.Key()) && d.BudgetLeft(a, false) && !d.allocs.besideCanary(a)
}
