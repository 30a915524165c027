// SPDX-License-Identifier: MPL-2.0

package state

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// kept is how many decisions and events are remembered for people.
const kept = 200

// history is the recent past for people, newest last.
type history struct {
	decisions []view.Decision
	events    []view.Event
}

// decision notes a decision, and reports whether it is new. One that is stored may be read
// again when a replica begins to lead, and is noted once.
func (h *history) decision(v view.Decision) bool {
	if h.knows(v) {
		return false
	}
	h.decisions = last(append(h.decisions, v))
	return true
}

// knows reports whether a decision is noted.
func (h *history) knows(v view.Decision) bool {
	return slices.ContainsFunc(h.decisions, func(have view.Decision) bool {
		return have.At.Equal(v.At) && have.Namespace == v.Namespace && have.JobID == v.JobID && have.Group == v.Group
	})
}

func (h *history) event(e view.Event) { h.events = last(append(h.events, e)) }

// trouble notes something that should not have happened.
func (h *history) trouble(at time.Time, err error) {
	h.event(view.Event{At: at, Kind: "error", Text: err.Error()})
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

// Past is the last decisions and events, newest first.
func (h *history) Past() ([]view.Decision, []view.Event) {
	return newestFirst(h.decisions), newestFirst(h.events)
}

// recall takes the events that earlier leaders stored, among those that are known.
func (h *history) recall(stored []view.Event) {
	known := h.events
	h.events = nil
	for _, e := range slices.Backward(stored) {
		if !slices.ContainsFunc(known, e.Same) {
			h.event(e)
		}
	}
	for _, e := range known {
		h.event(e)
	}
	slices.SortStableFunc(h.events, func(x, y view.Event) int { return x.At.Compare(y.At) })
	slices.SortStableFunc(h.decisions, func(x, y view.Decision) int { return x.At.Compare(y.At) })
}

// stored is a copy of the events for the next leader, newest first.
func (h *history) stored() []view.Event {
	return slices.DeleteFunc(newestFirst(h.events), func(e view.Event) bool { return e.Kind == "error" })
}

// NoteDecision keeps a decision for people, and reports whether it is new.
func (tx *Tx) NoteDecision(v view.Decision) bool { return tx.Queue.history.decision(v) }
