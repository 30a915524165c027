package state

import (
	"fmt"
	"maps"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/outlook"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// learnRun learns from an alloc that ended how long work runs that is like it: from the
// moment that it was given room. What was stopped, failed or was lost says nothing about that.
func (tx *Tx) learnRun(a *nomad.Alloc) {
	if a.Stopping || a.Status != api.AllocClientStatusComplete || len(a.Devices) == 0 || !a.Ended.After(a.Created) || !tx.ends(a.Key()) {
		return
	}
	u := tx.usageOf(a)
	tx.lifetimes.Ended(a.Ended.Sub(a.Created), tx.lifeKeys(a.Key(), a.Group, sizeOf(u.Takes))...)
}

// size is how much of how many GPUs work holds.
type size struct {
	gpus  int
	milli int64 // of each, in sixteenths of a GPU
}

func sizeOf(takes []place.Take) size {
	s := size{gpus: len(takes)}
	for _, t := range takes {
		s.milli = max(s.milli, (t.Milli*16+999)/1000)
	}
	return s
}

// lifeKeys are what lifetimes are known by: the job, for all children of one that is periodic
// or parameterized, the size, anything.
func (r *Reader) lifeKeys(key nomad.JobKey, group string, s size) []string {
	return []string{r.family(key).String() + "/" + group, fmt.Sprintf("%d x %d", s.gpus, s.milli), "any"}
}

// Remaining is how much longer the work of a usage is expected to run. That of a service, and
// what is promised or reserved only, is not known to end, unless its author says so.
func (r *Reader) Remaining(u *place.Usage) forecast.Remaining {
	a := r.allocs.byID[u.ID]
	if a == nil {
		return forecast.Remaining{}
	}
	limit := time.Duration(0)
	if g := r.group(a.Key(), a.Group); g != nil {
		limit = g.TimeLimit
	}
	return r.remaining(a.Key(), a.Group, sizeOf(u.Takes), r.Now().Sub(a.Created), limit)
}

// RunTime is how long an alloc of a group is expected to run that holds so much, as far as
// its author says (0: nothing) and others like it did.
func (r *Reader) RunTime(key nomad.JobKey, group string, limit time.Duration, takes []place.Take) forecast.Remaining {
	return r.remaining(key, group, sizeOf(takes), 0, limit)
}

func (r *Reader) remaining(key nomad.JobKey, group string, s size, age, limit time.Duration) forecast.Remaining {
	if !r.ends(key) {
		return (&forecast.Lifetimes{}).Remaining(age, limit)
	}
	return r.lifetimes.Remaining(age, limit, r.lifeKeys(key, group, s)...)
}

// starts is when what waits is likely to start, as estimated last.
type starts struct {
	at     time.Time
	groups map[string]Start
	first  map[string]Start      // the first estimate of each, to be compared with its start
	fits   map[string]*view.Fits // what would start now in place of each
	past   outlook.Calibration
}

// Start is when a group that waits is likely to start, and its place among what waits, from 1.
type Start struct {
	outlook.Outlook                 // as it is told
	Estimated       outlook.Outlook // before it was corrected by how far earlier ones were off
	At              time.Time       // of the estimate
	Turn, Of        int
	Held, HeldOf    int // how many of the last estimates held
}

// Shown is the start for people.
func (s Start) Shown() *view.Start {
	out := &view.Start{Turn: s.Turn, Of: s.Of, Known: s.Known, Held: s.Held, HeldOf: s.HeldOf}
	if s.Known {
		out.Soonest, out.Likely, out.Latest = s.At.Add(s.Soonest), s.At.Add(s.Likely), s.At.Add(s.Latest)
	}
	return out
}

// NoteStarts keeps estimates for people, by job/group.
func (tx *Tx) NoteStarts(starts map[string]Start) {
	o := &tx.outlook
	o.at, o.groups = tx.Now(), starts
	if o.first == nil {
		o.first = map[string]Start{}
	}
	for name, s := range starts {
		if _, known := o.first[name]; !known && s.Known {
			o.first[name] = s
		}
	}
	maps.DeleteFunc(o.first, func(name string, s Start) bool {
		_, waits := starts[name]
		return !waits && tx.Now().Sub(s.At) > s.Estimated.Latest+Unplaced // it left without a start
	})
	tx.version++
}

// NoteFits keeps for people what would start now in place of what waits, by job/group.
func (tx *Tx) NoteFits(fits map[string]*view.Fits) {
	tx.outlook.fits = fits
	tx.version++
}

// FitsFor is what would start now in place of a group that waits; nil where nothing is known.
func (r *Reader) FitsFor(key nomad.JobKey, group string) *view.Fits {
	return r.outlook.fits[key.String()+"/"+group]
}

// learnStart compares the first estimate for a group with when an alloc of it was placed.
func (tx *Tx) learnStart(a *nomad.Alloc) {
	name := a.Key().String() + "/" + a.Group
	if s, found := tx.outlook.first[name]; found {
		tx.outlook.past.Learn(s.Estimated, s.Outlook, a.Created.Sub(s.At))
		delete(tx.outlook.first, name)
	}
}

// Calibration corrects estimates by how far earlier ones were off, and stays as it is.
func (r *Reader) Calibration() outlook.Calibration { return r.outlook.past.Clone() }

// StartOf is when a group that waits is likely to start; ok is false where nothing was
// estimated.
func (r *Reader) StartOf(key nomad.JobKey, group string) (s Start, ok bool) {
	s, ok = r.outlook.groups[key.String()+"/"+group]
	return s, ok
}

// StartsNoted is when starts were estimated last; zero: never.
func (r *Reader) StartsNoted() time.Time { return r.outlook.at }
