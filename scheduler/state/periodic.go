package state

import (
	"iter"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// Clocked yields the groups of periodic jobs whose children do not wait before they start: Nomad
// may start one of each at any time, and all at once.
func (r *Reader) Clocked() iter.Seq2[nomad.JobKey, record.Group] {
	return func(yield func(nomad.JobKey, record.Group) bool) {
		for key := range r.limited.clocked {
			known := r.records[key]
			for name, g := range known.Groups {
				if r.startsByClock(known, name) && !yield(key, g) {
					return
				}
			}
		}
	}
}

// startsByClock reports whether children of a periodic job start with a group that does not wait,
// by what is registered, or is about to be.
func (r *Reader) startsByClock(known *record.Record, group string) bool {
	if r.UnderWay(known) {
		return known.Groups[group].Decision.Hold == nil
	}
	j := r.jobs.byKey[known.Key()]
	if j == nil || !j.Periodic {
		return false
	}
	g := j.Group(group)
	return g != nil && (g.Was == nil || g.Was.Hold == "")
}

// launchedBy is the periodic job of which Nomad launched a job, by their IDs: it forgets whose child
// a job is when that is registered again. Anyone may give his job such an ID.
func launchedBy(key nomad.JobKey) (parent nomad.JobKey, launched bool) {
	at := strings.LastIndex(key.ID, "/periodic-")
	if at < 0 {
		return nomad.JobKey{}, false
	}
	return nomad.JobKey{Namespace: key.Namespace, ID: key.ID[:at]}, true
}

// Overlaps reports whether a child of a periodic job that prohibits overlap would run beside another
// one.
func (r *Reader) Overlaps(key nomad.JobKey) bool {
	parent, launched := launchedBy(key)
	if p := r.jobs.byKey[parent]; !launched || p == nil || !p.Periodic || p.Overlaps {
		return false
	}
	for _, other := range r.launched[parent] {
		if other != key && (len(r.allocs.byJob[other]) > 0 || r.AnyAssumed(other)) {
			return true
		}
	}
	return false
}
