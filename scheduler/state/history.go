package state

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// kept is how many decisions and events are remembered for people.
const kept = 200

// history is the recent past, newest last.
type history struct {
	decisions []view.Decision
	events    []view.Event
	untold    []view.Event               // for the audit log
	unwritten []view.Event               // that the jobs' own stored events do not have yet, oldest first
	evicted   evictions[nomad.JobKey]    // of jobs
	byQueue   evictions[string]          // the same, of all jobs of a queue
	moved     map[nomad.JobKey]time.Time // when work of a job was moved last, within budgetTime
	idle      map[nomad.JobKey]time.Time // when work of a job was evicted last since it did not use its GPUs, within budgetTime
	overran   map[string]time.Time       // when a child of a periodic job took a queue above its limit last, within budgetTime
	saved     *record.History            // as it is stored
	unsaved   bool                       // something was done since
}

// decision notes a decision. One that is stored may be read again when a replica
// begins to lead, and is noted once.
func (h *history) decision(v view.Decision) {
	if !h.knows(v) {
		h.decisions = last(append(h.decisions, v))
	}
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

// Decisions are the last decisions, newest first.
func (r *Reader) Decisions() []view.Decision { return newestFirst(r.history.decisions) }

// Events are the last events, newest first.
func (r *Reader) Events() []view.Event { return newestFirst(r.history.events) }

// NoteDecision keeps a decision for people, and reports whether it is new.
func (tx *Tx) NoteDecision(v view.Decision) bool {
	if tx.history.knows(v) {
		return false
	}
	tx.history.decision(v)
	return true
}

// budgetTime is the time in which evictions of a job are counted.
const budgetTime = time.Hour

// Note keeps an event for people, for the audit log and for the next leader. That an alloc is
// stopped is noted before it is, and once more with Failed where that fails.
func (tx *Tx) Note(e view.Event) {
	e.At = tx.now()
	h := &tx.history
	h.event(e)
	h.untold = append(h.untold, e)
	if !e.DryRun {
		h.unwritten = append(h.unwritten, e)
	}
	h.unsaved = true
	h.noteMoveOrIdle(&e)
	tx.version++
	if e.DryRun || e.Failed || e.AllocID == "" || e.Kind != "evict" && e.Kind != "reclaim" && e.Kind != "idle" {
		return
	}
	key := nomad.JobKey{Namespace: e.Namespace, ID: e.JobID}
	var q *config.Queue
	if a := tx.allocs[e.AllocID]; a != nil {
		q = tx.QueueOf(key, a.Group)
	}
	own := q != nil && tx.paysFor(q, ParseKey(e.For))
	h.evicted.note(key, e.At, own)
	if q != nil {
		h.byQueue.note(q.Name, e.At, own)
		tx.rebookQueue(q.Name)
	}
	tx.rebookJob(key)
}

// noteMoveOrIdle keeps when work of a job was moved, or evicted since it did not use its GPUs.
func (h *history) noteMoveOrIdle(e *view.Event) {
	key := nomad.JobKey{Namespace: e.Namespace, ID: e.JobID}
	switch {
	case e.DryRun, e.Failed:
	case e.Kind == "move":
		h.moved[key] = e.At
	case e.Kind == "idle":
		h.idle[key] = e.At
	}
}

// Moved reports whether work of a job was moved within the last hour.
func (r *Reader) Moved(key nomad.JobKey) bool { return r.Within(r.history.moved[key], budgetTime) }

// WasIdle reports whether work of a job was evicted within the last hour since it did not use
// its GPUs.
func (r *Reader) WasIdle(key nomad.JobKey) bool { return r.Within(r.history.idle[key], budgetTime) }

// NoteOverrun keeps that a child of a periodic job took a queue above its limit.
func (tx *Tx) NoteOverrun(queue string) {
	tx.history.overran[queue], tx.history.unsaved = tx.now(), true
}

// Overran reports whether a child of a periodic job took a queue above its limit within the last
// hour.
func (r *Reader) Overran(queue string) bool { return r.Within(r.history.overran[queue], budgetTime) }

// TakeUntold returns the events that the audit log does not have yet, once.
func (tx *Tx) TakeUntold() []view.Event {
	list := tx.history.untold
	tx.history.untold = nil
	return list
}

// TakeUnwritten returns the events that their jobs' stored events do not have yet, oldest first.
// Those that cannot be written must be put back.
func (tx *Tx) TakeUnwritten() []view.Event {
	list := tx.history.unwritten
	tx.history.unwritten = nil
	return list
}

// PutBackUnwritten takes back what could not be written.
func (tx *Tx) PutBackUnwritten(list []view.Event) {
	tx.history.unwritten = append(list, tx.history.unwritten...)
}

// forgetEvictions forgets those that do not count any more.
func (tx *Tx) forgetEvictions() {
	maps.DeleteFunc(tx.history.moved, func(key nomad.JobKey, _ time.Time) bool { return !tx.Moved(key) })
	maps.DeleteFunc(tx.history.idle, func(key nomad.JobKey, _ time.Time) bool { return !tx.WasIdle(key) })
	maps.DeleteFunc(tx.history.overran, func(queue string, _ time.Time) bool { return !tx.Overran(queue) })
	for _, key := range tx.history.evicted.expire(tx.now()) {
		tx.rebookJob(key)
	}
	for _, queue := range tx.history.byQueue.expire(tx.now()) {
		tx.rebookQueue(queue)
	}
}

// TakeUnsaved returns what was done and what of it is stored, or nil when that is
// the same. Saved must follow.
func (tx *Tx) TakeUnsaved() (now, was *record.History) {
	h := &tx.history
	if !h.unsaved && !tx.usedUnsaved() {
		return nil, nil
	}
	h.unsaved = false
	now = &record.History{Evicted: byName(h.evicted.all), EvictedOwn: byName(h.evicted.own), EvictedQueues: maps.Clone(h.byQueue.all), EvictedQueuesOwn: maps.Clone(h.byQueue.own)}
	now.Used, now.UsedAt = tx.past.Stored()
	now.Events = slices.DeleteFunc(newestFirst(h.events), func(e view.Event) bool { return e.Kind == "error" })
	now.Overran, now.Moved, now.Idle = maps.Clone(h.overran), timesByName(h.moved), timesByName(h.idle)
	return now, h.saved
}

// usedEvery is how often what queues used is stored at least, while they use anything.
const usedEvery = 5 * time.Minute

func (tx *Tx) usedUnsaved() bool {
	used, at := tx.past.Stored()
	return len(used) > 0 && at.Sub(tx.history.saved.UsedAt) >= usedEvery
}

// Saved notes what is stored; nil: nothing new.
func (tx *Tx) Saved(now *record.History) {
	if now == nil {
		tx.history.unsaved = true
		return
	}
	tx.history.saved = now
}

// RecallHistory takes what earlier leaders did.
func (tx *Tx) RecallHistory(stored *record.History) {
	h := &tx.history
	h.saved = stored
	tx.past = quota.RestorePast(tx.config.HalfLife, stored.Used, stored.UsedAt)
	tx.setQuotas()
	known := h.events
	h.events = nil
	for _, e := range slices.Backward(stored.Events) {
		h.noteMoveOrIdle(&e) // earlier releases kept only events
		if !slices.Contains(known, e) {
			h.event(e)
		}
	}
	for _, e := range known {
		h.event(e)
	}
	slices.SortStableFunc(h.events, func(x, y view.Event) int { return x.At.Compare(y.At) })
	slices.SortStableFunc(h.decisions, func(x, y view.Decision) int { return x.At.Compare(y.At) })
	for name, times := range stored.Evicted {
		key := ParseKey(name)
		h.evicted.recall(key, times, stored.EvictedOwn[name])
		tx.rebookJob(key)
	}
	for queue, times := range stored.EvictedQueues {
		h.byQueue.recall(queue, times, stored.EvictedQueuesOwn[queue])
		tx.rebookQueue(queue)
	}
	for name, at := range stored.Moved {
		h.moved[ParseKey(name)] = at
	}
	for name, at := range stored.Idle {
		h.idle[ParseKey(name)] = at
	}
	for queue, at := range stored.Overran {
		h.overran[queue] = at
	}
	tx.version++
}

// ParseKey reads what JobKey.String wrote.
func ParseKey(name string) nomad.JobKey {
	namespace, id, _ := strings.Cut(name, "/")
	return nomad.JobKey{Namespace: namespace, ID: id}
}

// NoteFutile keeps for people whether evictions were looked for in vain.
func (tx *Tx) NoteFutile(key nomad.JobKey, group string, futile bool) {
	if r := &tx.Reader; r.Futile(key, group) == futile {
		return
	}
	tx.version++
	if futile {
		tx.futile[key.String()+"/"+group] = true
	} else {
		delete(tx.futile, key.String()+"/"+group)
	}
}

// Futile reports whether no eviction that is allowed would make room for a group.
func (r *Reader) Futile(key nomad.JobKey, group string) bool { return r.futile[key.String()+"/"+group] }

func (tx *Tx) forgetFutile(key nomad.JobKey) {
	maps.DeleteFunc(tx.futile, func(name string, _ bool) bool { return strings.HasPrefix(name, key.String()+"/") })
	maps.DeleteFunc(tx.unmoved, func(name, _ string) bool { return strings.HasPrefix(name, key.String()+"/") })
}

// NoteUnmoved keeps for people why no work was moved for a group that waits for room.
func (tx *Tx) NoteUnmoved(key nomad.JobKey, group, why string) {
	if r := &tx.Reader; r.Unmoved(key, group) != why {
		tx.unmoved[key.String()+"/"+group] = why
		tx.version++
	}
}

// Unmoved is why no work was moved for a group, when it was looked for last; empty: it
// was, or it was not looked for.
func (r *Reader) Unmoved(key nomad.JobKey, group string) string {
	return r.unmoved[key.String()+"/"+group]
}
