// SPDX-License-Identifier: MPL-2.0

package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// records are the decisions about jobs, as far as read, and how they compare with the jobs as
// registered.
type records struct {
	clock   clock
	jobs    *jobs
	byJob   map[nomad.JobKey]*record.Record
	drifted map[nomad.JobKey]bool // jobs that are not registered as recorded
	limited limited               // jobs that are recorded as kept off some nodes
}

func newRecords(c clock, j *jobs) *records {
	return &records{clock: c, jobs: j, byJob: map[nomad.JobKey]*record.Record{}, drifted: map[nomad.JobKey]bool{}, limited: newLimited()}
}

// put takes a record as that of its job.
func (l *records) put(r *record.Record) {
	r.Seal()
	l.byJob[r.Key()] = r
	l.limited.note(r)
	l.compare(r.Key())
}

// remove forgets the decision about a job.
func (l *records) remove(key nomad.JobKey) {
	delete(l.byJob, key)
	l.limited.forget(key)
	l.compare(key)
}

// Record is the decision about a job; nil: none is known. It must not
// be changed.
func (l *records) Record(key nomad.JobKey) *record.Record { return l.byJob[key] }

// Which jobs that have a record [Queue.Recorded] lists.
type Which uint8

// Which jobs.
const (
	Recorded Which = iota // all
	Drifted               // those that bear the service's marks and are not registered as recorded
	KeptOff               // those with a group that is kept off some nodes while room there is made for another job
	HeldTo                // those with a system group that is held to some nodes
)

// Recorded lists jobs, in order.
func (l *records) Recorded(which Which) []nomad.JobKey {
	if which == Recorded {
		return slices.SortedFunc(maps.Keys(l.byJob), CompareKeys)
	}
	of := map[Which]map[nomad.JobKey]bool{Drifted: l.drifted, KeptOff: l.limited.off, HeldTo: l.limited.to}
	return slices.SortedFunc(maps.Keys(of[which]), CompareKeys)
}

// CompareKeys orders jobs by namespace, then ID.
func CompareKeys(x, y nomad.JobKey) int {
	return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.ID, y.ID))
}

// isHeld reports whether a group was recorded as one that waits.
func (l *records) isHeld(key nomad.JobKey, group string) bool {
	known := l.byJob[key]
	return known != nil && known.Groups[group].Decision.Hold != nil
}

// compare notes whether a job is registered as it was recorded. What bears no
// mark came around the service, and is left as it is.
func (l *records) compare(key nomad.JobKey) {
	j, r := l.jobs.Job(key), l.byJob[key]
	drifted := j != nil && (!j.Stopped || j.Template && r != nil) && slices.ContainsFunc(j.Groups, func(g nomad.Group) bool {
		return g.Was != nil && g.GPU() && (!AsRecorded(r, &g) || Shrunk(r, &g))
	})
	if drifted {
		l.drifted[key] = true
	} else {
		delete(l.drifted, key)
	}
}

// Drifted reports whether a job bears the service's marks and is not registered as
// it was recorded.
func (l *records) Drifted(key nomad.JobKey) bool { return l.drifted[key] }

// Echo is how long after Nomad took a job its news may take.
const Echo = 3 * time.Second

// UnderWay reports whether the recorded decision is still on its way to Nomad, or the
// news of it back.
func (l *records) UnderWay(of *record.Record) bool {
	if !of.Settled.IsZero() {
		return l.clock.Within(of.Settled, Echo)
	}
	return l.clock.Within(of.At, Unseen)
}

// Outgrown reports whether a job is registered as it was recorded but for more allocs: it
// was scaled around the service beyond what its queue can pay for.
func (l *records) Outgrown(key nomad.JobKey) bool {
	j, known := l.jobs.Job(key), l.byJob[key]
	if j == nil || known == nil {
		return false
	}
	return !slices.ContainsFunc(j.Groups, func(g nomad.Group) bool {
		g.Count = 0
		return g.GPU() && !AsRecorded(known, &g)
	})
}

// Unrecorded reports whether a job is registered otherwise than it was recorded: the
// record is of an earlier one of that name, and Nomad alone places this.
func (l *records) Unrecorded(key nomad.JobKey) bool {
	j, known := l.jobs.Job(key), l.byJob[key]
	return j != nil && !l.UnderWay(known) && slices.ContainsFunc(j.Groups, func(g nomad.Group) bool { return g.GPU() && !AsRecorded(known, &g) })
}

// Direct reports whether a job, as it is registered now, came around the service: a
// group that asks for GPUs differs from its record, or for a child from that of
// its parent.
func (l *records) Direct(key nomad.JobKey) bool {
	j := l.jobs.Job(key)
	if j == nil {
		return false
	}
	known := l.byJob[key]
	if known != nil && l.UnderWay(known) {
		return false
	}
	var parent *record.Record
	if j.Parent != "" {
		parent = l.byJob[nomad.JobKey{Namespace: key.Namespace, ID: j.Parent}]
	}
	return slices.ContainsFunc(j.Groups, func(g nomad.Group) bool {
		admitted := AsRecorded(known, &g) && !known.Groups[g.Name].Direct
		return g.GPU() && !admitted && !inherited(parent, &g)
	})
}

// Keep takes a record as that of its job.
func (tx *Tx) Keep(r *record.Record) {
	tx.Queue.records.put(r)
	tx.Queue.enlist(r.Key())
	tx.version++
}

// Settled notes that Nomad has the recorded decision about a job.
func (tx *Tx) Settled(key nomad.JobKey) {
	if r := tx.Queue.Record(key); r != nil {
		r.Settled = tx.Now()
	}
}

// ForgetRecord forgets the decision about a job.
func (tx *Tx) ForgetRecord(key nomad.JobKey) {
	tx.Queue.records.remove(key)
	tx.Queue.enlist(key)
}
