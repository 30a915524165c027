// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// completed describes the allocs of a batch job that completed while the job goes on.
type completed struct {
	runs   int           // how many of them this service has heard of
	took   time.Duration // their run times, added up
	last   time.Time     // when the service heard of the last of them
	booked time.Duration // what an eviction would repeat, as the job's usages say now
	again  bool          // another version was registered since, so Nomad has run some of them again
}

// completions are the completed allocs of batch jobs that go on.
type completions struct {
	clock   clock
	jobs    *jobs
	allocs  *allocs
	records *records
	returns *returns
	of      map[nomad.JobKey]completed
}

func newCompletions(c clock, j *jobs, a *allocs, r *records, f *returns) *completions {
	return &completions{clock: c, jobs: j, allocs: a, records: r, returns: f, of: map[nomad.JobKey]completed{}}
}

// note counts an alloc that completed by itself. A job with a single alloc has ended then, and
// nothing of it could be repeated.
func (l *completions) note(a *nomad.Alloc) {
	j := l.jobs.Job(a.Key())
	if a.Stopping || a.Status != api.AllocClientStatusComplete || j == nil || j.Stopped || j.Type != "batch" || !several(j) {
		return
	}
	c := l.of[a.Key()]
	c.runs, c.last = c.runs+1, l.clock.Now()
	c.took += max(0, a.Ended.Sub(a.Created))
	l.of[a.Key()] = c
}

// registered notes that another version of a job is registered, whoever registered it.
func (l *completions) registered(key nomad.JobKey) {
	if l.completed(key) > 0 {
		c := l.of[key]
		c.again = true
		l.of[key] = c
	}
}

// RunsAgain reports whether a version of a job was registered after allocs of it had completed, so
// that Nomad may run these again: this was seen, or is recorded since the author submitted the job. Nomad
// does not ask whether the job's queue can pay for that. It stays so until the job ends.
func (l *completions) RunsAgain(key nomad.JobKey) bool {
	known := l.records.Record(key)
	if known == nil {
		return l.of[key].again
	}
	return l.of[key].again || slices.ContainsFunc(slices.Collect(maps.Values(known.Groups)), func(g record.Group) bool { return g.Again })
}

// forget forgets a job that has ended.
func (l *completions) forget(key nomad.JobKey) { delete(l.of, key) }

// several reports whether a job has more than one alloc.
func several(j *nomad.Job) bool {
	n := 0
	for _, g := range j.Groups {
		n += g.Count
	}
	return n > 1
}

// completed is how many allocs of a batch job have completed under the version that is registered,
// while others run or wait: Nomad runs these again when another version is registered. The number is
// the group's count without the allocs that run, those that Nomad reports as missing and those that
// it starts again after a failure. Nomad also reports allocs as missing that run and that it could not
// bring up to that version: they are of an earlier one, on a node where their group may not run, or it
// is held. These are not taken off twice. An alloc that failed for good is counted too: Nomad would
// also run it again.
func (l *completions) completed(key nomad.JobKey) (n int) {
	j := l.jobs.Job(key)
	if l.of[key].runs == 0 || j == nil || j.Stopped {
		return 0
	}
	for _, g := range j.Groups {
		n += l.completedOf(key, &g)
	}
	return n
}

// CompletedOf is how many allocs of a group Nomad would run again: see [Queue.Repeats].
func (l *completions) CompletedOf(key nomad.JobKey, group string) int {
	g := l.jobs.group(key, group)
	if g == nil || l.of[key].runs == 0 || l.jobs.Job(key).Stopped {
		return 0
	}
	return l.completedOf(key, g)
}

func (l *completions) completedOf(key nomad.JobKey, g *nomad.Group) int {
	var of record.Group
	if known := l.records.Record(key); known != nil {
		of = known.Groups[g.Name]
	}
	j, missing := l.jobs.Job(key), l.jobs.Blocked(key).Allocs(g.Name)
	goesOn, stays, failed := 0, 0, 0
	for _, a := range l.allocs.byJob[key] {
		switch {
		case a.Group != g.Name || a.Stopping:
		case of.Decision.Hold != nil || of.Excluded[a.NodeID] != "" || a.OfEarlier(j):
			stays++
		default:
			goesOn++
		}
	}
	for _, f := range l.returns.byID { // they are often the same as those that are missing
		if f.alloc.Key() == key && f.alloc.Group == g.Name {
			failed++
		}
	}
	gone := g.Count - goesOn - max(stays, missing)
	return max(0, gone-failed, min(gone, l.of[key].runs)) // returns may still list a failed alloc that was replaced
}

// repeats is how long the allocs ran, added up, that Nomad would run again; 0: there are none.
func (l *completions) repeats(key nomad.JobKey) time.Duration {
	n := l.completed(key)
	if n == 0 {
		return 0
	}
	c := l.of[key]
	return max(time.Second, time.Duration(n)*(c.took/time.Duration(c.runs)))
}

// Repeats are the completed allocs of a job that Nomad would run again if it was registered again.
type Repeats struct {
	Allocs int
	Time   time.Duration // how long they ran, added up: their number times the average
	// Waited reports whether something of the job has waited, and nothing more of it has completed, for
	// as long as its completed allocs ran. So at most twice the time is lost that would have been lost
	// if it had been known from the start how long the wait would be. A job without waiting allocs is
	// left alone, and one that would repeat little does not wait long.
	Waited bool
	Above  string // why the queue of its first group, by name, cannot pay for them
}

// May reports whether the job may be registered again for the sake of its waiting allocs: those have
// waited for long enough, and its queues can pay for all that starts. Nomad itself does not ask.
func (r Repeats) May() bool { return r.Allocs == 0 || r.Waited && r.Above == "" }

// Repeats is what Nomad would run again of a job.
func (q *Queue) Repeats(key nomad.JobKey) Repeats {
	n := q.completed(key)
	if n == 0 {
		return Repeats{}
	}
	r := Repeats{Allocs: n, Time: q.repeats(key)}
	if b := q.completions.jobs.blocked[key]; b != nil {
		since := b.Since
		if last := q.completions.of[key].last; last.After(since) {
			since = last
		}
		r.Waited = q.completions.clock.Now().Sub(since) >= r.Time
	}
	known := q.Record(key)
	if known == nil || !r.Waited {
		return r
	}
	for _, name := range slices.Sorted(maps.Keys(known.Groups)) {
		g := known.Groups[name]
		if r.Above = q.RepeatAbove(key, &g); r.Above != "" {
			break
		}
	}
	return r
}

// RepeatAbove says why the queue of a group cannot pay for the completed allocs that Nomad would run
// again, besides those that wait; empty if it can, or if there are none.
func (q *Queue) RepeatAbove(key nomad.JobKey, g *record.Group) string {
	n, pays := q.CompletedOf(key, g.Ask.Group), q.completions.jobs.QueueOf(key, g.Ask.Group)
	if n == 0 || pays == nil {
		return ""
	}
	_, why := q.OverWithOwed(pays.Name, g.Cost.Times(int64(n+q.completions.jobs.Blocked(key).Allocs(g.Ask.Group))), key)
	return why
}

// bookRepeats books a job's allocs again with what an eviction would repeat, if that has changed by
// more than a quarter.
func (tx *Tx) bookRepeats(key nomad.JobKey) {
	c, found := tx.Queue.completions.of[key]
	if !found {
		return
	}
	if repeats := tx.Queue.repeats(key); (repeats - c.booked).Abs() > c.booked/4 {
		c.booked = repeats
		tx.Queue.completions.of[key] = c
		tx.rebookJob(key)
	}
}
