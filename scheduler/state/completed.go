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
	if l.Completed(key) > 0 {
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

// Completed is how many allocs of a batch job have completed under the version that is registered,
// while others run or wait: Nomad runs these again when another version is registered. The number is
// the group's count without the allocs that run, those that Nomad reports as missing and those that
// it starts again after a failure. Nomad also reports allocs as missing that run and that it could not
// bring up to that version: they are of an earlier one, on a node where their group may not run, or it
// is held. These are not taken off twice. An alloc that failed for good is counted too: Nomad would
// also run it again.
func (l *completions) Completed(key nomad.JobKey) (n int) {
	j := l.jobs.Job(key)
	if l.of[key].runs == 0 || j == nil || j.Stopped {
		return 0
	}
	for _, g := range j.Groups {
		n += l.completedOf(key, &g)
	}
	return n
}

// CompletedOf is Completed for one group.
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
	j, missing := l.jobs.Job(key), l.jobs.Missing(key, g.Name)
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

// Repeats is how long the allocs ran, added up, that Nomad would run again if a job was registered
// again; 0: there are none. It is their number times the average run time.
func (l *completions) Repeats(key nomad.JobKey) time.Duration {
	n := l.Completed(key)
	if n == 0 {
		return 0
	}
	c := l.of[key]
	return max(time.Second, time.Duration(n)*(c.took/time.Duration(c.runs)))
}

// WaitedToRepeat reports whether something of a job has waited, and nothing more of it has completed,
// for as long as its completed allocs ran. So at most twice the time is lost that would have been lost
// if it had been known from the start how long the wait would be. A job without waiting allocs is left
// alone, and one that would repeat little does not wait long.
func (l *completions) WaitedToRepeat(key nomad.JobKey) bool {
	repeats := l.Repeats(key)
	if repeats == 0 {
		return true
	}
	b := l.jobs.blocked[key]
	if b == nil {
		return false
	}
	since := b.Since
	if last := l.of[key].last; last.After(since) {
		since = last
	}
	return l.clock.Now().Sub(since) >= repeats
}

// MayRepeat reports whether a job may be registered again for the sake of its waiting allocs, although
// Nomad then runs its completed ones again: those have waited for long enough, and its queues can pay
// for all that starts.
func (r *Reader) MayRepeat(key nomad.JobKey) bool {
	return r.Queue.WaitedToRepeat(key) && r.RepeatsAbove(key) == ""
}

// RepeatAbove says why the queue of a group cannot pay for the completed allocs that Nomad would run
// again, besides those that wait; empty if it can, or if there are none. Nomad itself does not ask.
func (r *Reader) RepeatAbove(key nomad.JobKey, g *record.Group) string {
	n, q := r.Queue.CompletedOf(key, g.Ask.Group), r.Cluster.QueueOf(key, g.Ask.Group)
	if n == 0 || q == nil {
		return ""
	}
	_, why := r.OverWithOwed(q.Name, g.Cost.Times(int64(n+r.Cluster.Missing(key, g.Ask.Group))), key)
	return why
}

// RepeatsAbove is that of the first group of a job, by name, whose queue cannot pay.
func (r *Reader) RepeatsAbove(key nomad.JobKey) string {
	known := r.Queue.Record(key)
	if known == nil || r.Queue.Completed(key) == 0 {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(known.Groups)) {
		g := known.Groups[name]
		if why := r.RepeatAbove(key, &g); why != "" {
			return why
		}
	}
	return ""
}

// bookRepeats books a job's allocs again with what an eviction would repeat, if that has changed by
// more than a quarter.
func (tx *Tx) bookRepeats(key nomad.JobKey) {
	c, found := tx.Queue.completions.of[key]
	if !found {
		return
	}
	if repeats := tx.Queue.Repeats(key); (repeats - c.booked).Abs() > c.booked/4 {
		c.booked = repeats
		tx.Queue.completions.of[key] = c
		tx.rebookJob(key)
	}
}
