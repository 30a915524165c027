package state

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// What Nomad has registered is the truth; a record is what the service wrote
// last. They come apart when a job is reverted, by its owner or by a failed
// deployment, or edited around the service, when a Variable is lost, and for the
// children of periodic and parameterized jobs, which have no record of their own.

// AsRecorded reports whether a group is registered as it was recorded.
func AsRecorded(r *record.Record, g *nomad.Group) bool {
	if r == nil {
		return false
	}
	known, found := r.Groups[g.Name]
	return found && known.Fingerprint == g.Registered && g.Count <= known.Ask.Count // more were not decided about
}

// Shrunk reports whether a group is registered with fewer allocs than were recorded: it was
// scaled down around the service, and what it had beyond is not admitted any more.
func Shrunk(r *record.Record, g *nomad.Group) bool {
	if r == nil {
		return false
	}
	known, found := r.Groups[g.Name]
	return found && known.Fingerprint == g.Registered && g.Count < known.Ask.Count && (known.Ask.JobType == "service" || known.Ask.JobType == "batch")
}

// Outgrown reports whether a job is registered as it was recorded but for more allocs: it
// was scaled around the service beyond what its queue can pay for.
func (r *Reader) Outgrown(key nomad.JobKey) bool {
	j, known := r.jobs.byKey[key], r.records[key]
	if j == nil || known == nil {
		return false
	}
	return !slices.ContainsFunc(j.Groups, func(g nomad.Group) bool {
		g.Count = 0
		return g.GPU() && !AsRecorded(known, &g)
	})
}

// inherited reports whether a child's group is as it was recorded of its parent.
func inherited(r *record.Record, g *nomad.Group) bool {
	if r == nil || g.Inherited == "" {
		return false
	}
	known, found := r.Groups[g.Name]
	if found && known.Decision.Hold != nil && known.Fingerprint != g.Inherited { // it started before its parent was held
		free := known.Decision
		free.Hold = nil
		return known.Ask.Fingerprint(&free) == g.Inherited
	}
	return found && known.Fingerprint == g.Inherited
}

// compare notes whether a job is registered as it was recorded. What bears no
// mark came around the service, and is left as it is.
func (tx *Tx) compare(key nomad.JobKey) {
	j, r := tx.jobs.byKey[key], tx.records[key]
	drifted := j != nil && !j.Stopped && slices.ContainsFunc(j.Groups, func(g nomad.Group) bool {
		return g.Was != nil && g.GPU() && (!AsRecorded(r, &g) || Shrunk(r, &g))
	})
	if drifted {
		tx.drifted[key] = true
	} else {
		delete(tx.drifted, key)
	}
}

// Drifted reports whether a job bears the service's marks and is not registered as
// it was recorded.
func (r *Reader) Drifted(key nomad.JobKey) bool { return r.drifted[key] }

// DriftedJobs lists the jobs that have drifted, in order.
func (r *Reader) DriftedJobs() []nomad.JobKey {
	return slices.SortedFunc(maps.Keys(r.drifted), CompareKeys)
}

// Echo is how long after Nomad took a job its news may take.
const Echo = 3 * time.Second

// UnderWay reports whether what was recorded is still on its way to Nomad, or the
// news of it back.
func (r *Reader) UnderWay(of *record.Record) bool {
	if !of.Settled.IsZero() {
		return r.Within(of.Settled, Echo)
	}
	return r.Within(of.At, Unseen)
}

// Unrecorded reports whether a job is registered otherwise than it was recorded: the
// record is of an earlier one of that name, and Nomad alone places this.
func (r *Reader) Unrecorded(key nomad.JobKey) bool {
	j, known := r.jobs.byKey[key], r.records[key]
	return j != nil && !r.UnderWay(known) && slices.ContainsFunc(j.Groups, func(g nomad.Group) bool { return g.GPU() && !AsRecorded(known, &g) })
}

// Direct reports whether a job, as it is registered now, came around the service: a
// group that asks for GPUs is not what was recorded about it, or for a child about
// its parent.
func (r *Reader) Direct(key nomad.JobKey) bool {
	j := r.jobs.byKey[key]
	if j == nil {
		return false
	}
	known := r.records[key]
	if known != nil && r.UnderWay(known) {
		return false
	}
	var parent *record.Record
	if j.Parent != "" {
		parent = r.records[nomad.JobKey{Namespace: key.Namespace, ID: j.Parent}]
	}
	return slices.ContainsFunc(j.Groups, func(g nomad.Group) bool {
		admitted := AsRecorded(known, &g) && !known.Groups[g.Name].Direct
		return g.GPU() && !admitted && !inherited(parent, &g)
	})
}

// startedAgain notes that a job that had been stopped is registered to run. Where nothing
// was decided about that, it came around the service: what it was once admitted for may
// be taken.
func (tx *Tx) startedAgain(key nomad.JobKey) {
	known := tx.records[key]
	if known == nil || tx.UnderWay(known) {
		return
	}
	r := known.Clone()
	for name, g := range r.Groups {
		g.Direct = true
		r.Groups[name] = g
	}
	tx.Keep(r)
}

// Keep takes a record as that of its job.
func (tx *Tx) Keep(r *record.Record) {
	r.Seal()
	tx.records[r.Key()] = r
	tx.limited.note(r)
	tx.compare(r.Key())
	tx.enlist(r.Key())
	tx.version++
}

// Stored takes a copy of a job's record that lies in another Variable, and is the same otherwise.
func (tx *Tx) Stored(r *record.Record) { tx.records[r.Key()] = r }

// ForgetRecord forgets what was decided about a job.
func (tx *Tx) ForgetRecord(key nomad.JobKey) {
	delete(tx.records, key)
	tx.limited.forget(key)
	tx.compare(key)
	tx.enlist(key)
}

// Settled notes that Nomad has what was recorded about a job.
func (tx *Tx) Settled(key nomad.JobKey) {
	if r := tx.records[key]; r != nil {
		r.Settled = tx.Now()
	}
}

// TakeGone lists jobs that left, once, whose records can go.
func (tx *Tx) TakeGone() []nomad.JobKey {
	var gone, later []nomad.JobKey
	for _, key := range tx.gone {
		r := tx.records[key]
		switch {
		case tx.jobs.byKey[key] != nil: // it has come back
		case r != nil && tx.Within(r.At, Unseen): // or is about to: this is newer than what is gone
			later = append(later, key)
		default:
			tx.ForgetRecord(key)
			gone = append(gone, key)
		}
	}
	tx.gone = later
	return gone
}

// PutBackGone takes back jobs whose records could not be deleted.
func (tx *Tx) PutBackGone(keys []nomad.JobKey) { tx.gone = append(tx.gone, keys...) }

// orphaned is how long a record outlives a job that Nomad does not have.
const orphaned = time.Hour

// fresh is how old a decision may be for its allocs to be still on their way to
// Nomad when the leader changes.
const fresh = time.Minute

// Recall takes a stored record, with what it promised a moment ago. It returns
// false for one whose job is gone.
func (tx *Tx) Recall(r *record.Record) bool {
	key := r.Key()
	j := tx.jobs.byKey[key]
	if j == nil && tx.Now().Sub(r.At) > orphaned {
		return false
	}
	if j != nil && r.Index > 0 && j.Index > r.Index { // registered since then
		r.Settled = r.At
	}
	tx.Keep(r)
	for name, g := range r.Groups {
		tx.NoteDecision(g.Shown)
		if g.Decision.Hold != nil || j != nil && j.Stopped || tx.Now().Sub(r.At) > fresh {
			continue
		}
		tx.ForgetGroup(key, name)
		tx.AssumeRest(key, name, g.Assumed, g.Ask.Count-tx.Live(key, name))
	}
	if j == nil || !j.Stopped {
		tx.recallRoom(r)
	}
	return true
}
