package state

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// completed is what was heard of allocs of a batch job that completed while the job goes on.
type completed struct {
	runs   int           // how many
	took   time.Duration // all of them
	last   time.Time     // when one was heard of last
	booked time.Duration // what the usages of the job say that is repeated
	again  bool          // another version of the job was registered since: Nomad runs it again
}

// completions is what has completed of batch jobs that go on.
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

// note takes an alloc that ended by itself. Of a job with one alone nothing is left that could be
// registered again.
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

// registered takes that another version of a job is registered.
func (l *completions) registered(key nomad.JobKey) {
	if l.Completed(key) > 0 {
		c := l.of[key]
		c.again = true
		l.of[key] = c
	}
}

// RunsAgain reports whether Nomad runs again what had completed of a job, since another version of it
// was registered. Nomad asks no queue whether it can pay for that.
func (l *completions) RunsAgain(key nomad.JobKey) bool { return l.of[key].again }

// forget forgets a job that goes on no more.
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
// while others run or wait. Those Nomad runs again once another version is registered. They are
// what does not run, and is neither missing nor started again after it failed: what runs where its
// group may not, or of a group that is held, Nomad counts among what is missing. One that failed for
// good counts as well: Nomad would run it again too.
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

// CompletedOf is that of one group.
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
	goesOn, failed := 0, 0
	for _, a := range l.allocs.byJob[key] {
		if a.Group == g.Name && !a.Stopping && of.Decision.Hold == nil && of.Excluded[a.NodeID] == "" {
			goesOn++
		}
	}
	for _, f := range l.returns.byID { // they are often the same as those that are missing
		if f.alloc.Key() == key && f.alloc.Group == g.Name {
			failed++
		}
	}
	gone := g.Count - goesOn - l.jobs.Missing(key, g.Name)
	return max(0, gone-failed, min(gone, l.of[key].runs)) // one that failed is known as such a little longer than it is gone
}

// Repeats is for how long the allocs ran that Nomad runs again when a job is registered again; 0: there
// are none.
func (l *completions) Repeats(key nomad.JobKey) time.Duration {
	n := l.Completed(key)
	if n == 0 {
		return 0
	}
	c := l.of[key]
	return max(time.Second, time.Duration(n)*(c.took/time.Duration(c.runs)))
}

// MayRepeat reports whether a job may be registered again for what waits of it, although Nomad then runs again
// what has completed of it: that has to have waited, and nothing else of the job to have completed,
// for as long as this takes. So no more time is lost than twice what would have been, had it been
// known how long it has to wait; a job of which nothing waits is left alone; and one of which little
// has completed does not wait long.
func (l *completions) MayRepeat(key nomad.JobKey) bool {
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

// bookRepeats has the usages of a job say what an eviction of it would have Nomad repeat, unless they say
// about that.
func (tx *Tx) bookRepeats(key nomad.JobKey) {
	c, found := tx.completions.of[key]
	if !found {
		return
	}
	if repeats := tx.Repeats(key); (repeats - c.booked).Abs() > c.booked/4 {
		c.booked = repeats
		tx.completions.of[key] = c
		tx.rebookJob(key)
	}
}
