package state

import (
	"iter"

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
	j := r.jobs[known.Key()]
	if j == nil || !j.Periodic {
		return false
	}
	g := j.Group(group)
	return g != nil && (g.Was == nil || g.Was.Hold == "")
}
