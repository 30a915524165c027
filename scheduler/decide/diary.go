package decide

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// kept is how many decisions and events are remembered for people.
const kept = 200

// diary is the recent past, newest last.
type diary struct {
	decisions []view.Decision
	events    []view.Event
}

// decision notes a decision. One that is stored may be read again when a
// replica begins to lead, and is noted once.
func (d *diary) decision(v view.Decision) {
	if !d.knows(v) {
		d.decisions = last(append(d.decisions, v))
	}
}

// knows reports whether a decision is noted.
func (d *diary) knows(v view.Decision) bool {
	return slices.ContainsFunc(d.decisions, func(have view.Decision) bool {
		return have.At.Equal(v.At) && have.Namespace == v.Namespace && have.JobID == v.JobID && have.Group == v.Group
	})
}

func (d *diary) event(e view.Event) { d.events = last(append(d.events, e)) }

// trouble notes something that should not have happened.
func (d *diary) trouble(at time.Time, err error) {
	d.event(view.Event{At: at, Kind: "error", Text: err.Error()})
}

// last keeps the newest entries. It copies now and then, not at every call.
func last[T any](list []T) []T {
	if len(list) < 2*kept {
		return list
	}
	return append([]T(nil), list[len(list)-kept:]...)
}

// newestFirst is a copy in reverse order, as far as it is kept.
func newestFirst[T any](list []T) []T {
	out := make([]T, 0, min(kept, len(list)))
	for i := len(list) - 1; i >= 0 && len(out) < kept; i-- {
		out = append(out, list[i])
	}
	return out
}
