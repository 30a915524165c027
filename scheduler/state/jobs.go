// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// jobs are Nomad's jobs as they are registered, and what Nomad cannot place of them.
type jobs struct {
	settings *settings
	byKey    map[nomad.JobKey]*nomad.Job
	said     map[nomad.JobKey]*nomad.Blocked // what Nomad says that it cannot place
	blocked  map[nomad.JobKey]*nomad.Blocked // the same, as the author's groups have it
}

func newJobs(s *settings) *jobs {
	return &jobs{settings: s, byKey: map[nomad.JobKey]*nomad.Job{}, said: map[nomad.JobKey]*nomad.Blocked{}, blocked: map[nomad.JobKey]*nomad.Blocked{}}
}

// put takes a job as it is registered now, and returns how it was; nil: it was not.
func (j *jobs) put(job *nomad.Job) (before *nomad.Job) {
	before = j.byKey[job.Key]
	j.byKey[job.Key] = job
	j.read(job.Key)
	return before
}

// remove forgets a job. What Nomad cannot place of it stays.
func (j *jobs) remove(key nomad.JobKey) { delete(j.byKey, key) }

// block takes what Nomad cannot place of a job; nil: nothing.
func (j *jobs) block(key nomad.JobKey, b *nomad.Blocked) {
	if j.said[key] = b; b == nil {
		delete(j.said, key)
	}
	j.read(key)
}

// read works out what is missing of a job: where a group waits in place of others, these are.
func (j *jobs) read(key nomad.JobKey) {
	b, job := j.said[key], j.byKey[key]
	if b != nil && job != nil && job.Scaled {
		of := *b
		of.Missing = maps.Clone(b.Missing)
		delete(of.Missing, admit.HoldGroup)
		for _, g := range job.Groups {
			if g.Unscaled && b.Missing[admit.HoldGroup] > 0 {
				of.Missing[g.Name] = g.Count
			}
		}
		if b = &of; len(of.Missing) == 0 {
			b = nil
		}
	}
	if j.blocked[key] = b; b == nil {
		delete(j.blocked, key)
	}
}

// Job is a job as it is registered; nil: there is none.
func (j *jobs) Job(key nomad.JobKey) *nomad.Job { return j.byKey[key] }

// hasJob reports whether a job is registered.
func (j *jobs) hasJob(key nomad.JobKey) bool { return j.byKey[key] != nil }

// group is a group as it is registered; nil: there is none.
func (j *jobs) group(key nomad.JobKey, name string) *nomad.Group {
	if job := j.byKey[key]; job != nil {
		return job.Group(name)
	}
	return nil
}

// task is a task of an alloc as it is registered; nil where it is not any more.
func (j *jobs) task(a *nomad.Alloc, name string) *nomad.Task {
	if g := j.group(a.Key(), a.Group); g != nil {
		return g.Task(name)
	}
	return nil
}

// family is what the children of a periodic or parameterized job have in common: their parent;
// any other job is its own.
func (j *jobs) family(key nomad.JobKey) nomad.JobKey {
	if job := j.byKey[key]; job != nil && job.Parent != "" {
		key.ID = job.Parent
	}
	return key
}

// ends reports whether the work of a job ends by itself; that of a job which is not known
// any more did.
func (j *jobs) ends(key nomad.JobKey) bool {
	job := j.byKey[key]
	return job == nil || job.Type == "batch" || job.Type == "sysbatch"
}

// Blocked is what Nomad cannot place of a job; nil: nothing.
func (j *jobs) Blocked(key nomad.JobKey) *nomad.Blocked { return j.blocked[key] }

// DefaultPriority is Nomad's.
const DefaultPriority = 50

// PriorityOf is the priority of a job.
func (j *jobs) PriorityOf(key nomad.JobKey) int {
	if job := j.byKey[key]; job != nil {
		return job.Priority
	}
	return DefaultPriority
}

// seatPriority is the highest that a task of an alloc gives its seat; 0: none says one.
func (j *jobs) seatPriority(a *nomad.Alloc) (highest int) {
	for _, d := range a.Devices {
		if t := j.task(a, d.Task); t != nil {
			highest = max(highest, t.SeatPriority)
		}
	}
	return highest
}

// guarantee is the compute that a task asks for expressly, 0 for none: the amount it told its
// node last, or that of its job.
func (j *jobs) guarantee(a *nomad.Alloc, task string) int64 {
	if milli, told := a.Compute[task]; told {
		return milli
	}
	if t := j.task(a, task); t != nil {
		return t.GuaranteeMilli
	}
	return 0
}

// IsGang reports whether a group is part of its job's gang.
func (j *jobs) IsGang(key nomad.JobKey, group string) bool {
	g := j.group(key, group)
	return g != nil && g.Gang
}

// Scaled reports whether a job is a child that is held and let go by counts, as one; nothing else of it
// can be changed.
func (j *jobs) Scaled(key nomad.JobKey) bool {
	job := j.byKey[key]
	return job != nil && job.Scaled
}

// Unchangeable reports whether nothing of a job can be changed: one that was dispatched of a job which
// came around the service. Then it is neither held nor kept off a node, and so it makes room for no other.
func (j *jobs) Unchangeable(key nomad.JobKey) bool {
	job := j.byKey[key]
	return job != nil && job.Dispatched && !job.Scaled
}

// QueueOf is the queue that pays for a group of a known job; nil: none.
func (j *jobs) QueueOf(key nomad.JobKey, group string) *config.Queue {
	named := ""
	if g := j.group(key, group); g != nil {
		named = g.Queue
	}
	q, err := j.settings.config.QueueFor(key.Namespace, named)
	if err != nil {
		// Submitted around the service with a queue that it may not use: its
		// namespace pays.
		q, _ = j.settings.config.QueueFor(key.Namespace, "")
	}
	return q
}

// paysFor reports whether a queue pays for a job.
func (j *jobs) paysFor(q *config.Queue, key nomad.JobKey) bool {
	job := j.byKey[key]
	return job != nil && slices.ContainsFunc(job.Groups, func(g nomad.Group) bool {
		own := j.QueueOf(key, g.Name)
		return g.GPU() && own != nil && own.Name == q.Name
	})
}
