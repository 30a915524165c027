// SPDX-License-Identifier: MPL-2.0

package state

import (
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// handover is the part of the recent past that is still to be written: to the audit log, to the events
// that are stored with each job, and for the next leader.
type handover struct {
	Audit   Outbox[view.Event] // for the audit log
	Events  Outbox[view.Event] // to be stored with their jobs, oldest first
	saved   *record.History    // as it is stored
	unsaved bool               // something was done since
}

// Outbox holds values until they are written elsewhere.
type Outbox[T any] struct{ list []T }

// Take returns the values, once. The caller puts back those that it cannot write.
func (o *Outbox[T]) Take() []T {
	list := o.list
	o.list = nil
	return list
}

// PutBack takes values back, before all that have come since.
func (o *Outbox[T]) PutBack(list []T) { o.list = append(list, o.list...) }

func (o *Outbox[T]) add(v T) { o.list = append(o.list, v) }

func newHandover() handover { return handover{saved: &record.History{}} }

// note keeps an event that is to be written.
func (h *handover) note(e *view.Event) {
	h.Audit.add(*e)
	if !e.DryRun {
		h.Events.add(*e)
	}
	h.unsaved = true
}

// Saved notes the stored history; nil: storing failed, and is tried again.
func (h *handover) Saved(now *record.History) {
	if now == nil {
		h.unsaved = true
		return
	}
	h.saved = now
}

// Note keeps an event for people, for the audit log and for the next leader. It is called before an
// alloc is stopped, and once more, with Failed set, if the alloc could not be stopped.
func (tx *Tx) Note(e view.Event) {
	e.At = tx.Now()
	tx.Queue.history.event(record.CutEvent(e))
	tx.handover.note(&e)
	tx.Capacity.disruptions.noteMoveOrIdle(&e)
	tx.version++
	if e.DryRun || e.Failed || e.AllocID == "" || e.Kind != "evict" && e.Kind != "reclaim" && e.Kind != "idle" {
		return
	}
	if queue := tx.Capacity.disruptions.noteEviction(&e); queue != "" {
		tx.rebookQueue(queue)
	}
	tx.rebookJob(nomad.JobKey{Namespace: e.Namespace, ID: e.JobID})
}

// forgetEvictions forgets those that do not count any more.
func (tx *Tx) forgetEvictions() {
	jobs, queues := tx.Capacity.disruptions.expire()
	for _, key := range jobs {
		tx.rebookJob(key)
	}
	for _, queue := range queues {
		tx.rebookQueue(queue)
	}
}

// usedEvery is how often what queues used is stored at least, while they use anything.
const usedEvery = 5 * time.Minute

// TakeUnsaved returns the history, and its stored form; nil if they are the same. The caller
// calls Saved afterward.
func (tx *Tx) TakeUnsaved() (now, was *record.History) {
	h := &tx.handover
	used, at := tx.Queue.quotas.past.Stored()
	learned := tx.arrivals.new && tx.Now().Sub(h.saved.LearnedAt) >= usedEvery
	if !h.unsaved && !learned && (len(used) == 0 || at.Sub(h.saved.UsedAt) < usedEvery) {
		return nil, nil
	}
	h.unsaved, tx.arrivals.new = false, false
	turnover := tx.Planner().Turnover()
	now = &record.History{
		Used: used, UsedAt: at, Events: tx.Queue.history.stored(),
		Arrived: slices.Clone(tx.arrivals.kinds), Turnover: &turnover, LearnedAt: tx.Now(),
	}
	tx.Capacity.disruptions.store(now)
	return now, h.saved
}

// RecallHistory takes what earlier leaders did.
func (tx *Tx) RecallHistory(stored *record.History) {
	tx.handover.saved = stored
	tx.Queue.quotas.restore(stored.Used, stored.UsedAt)
	tx.setQuotas()
	tx.Queue.history.recall(stored.Events)
	tx.recallDemand(stored)
	for _, e := range slices.Backward(stored.Events) {
		tx.Capacity.disruptions.noteMoveOrIdle(&e) // earlier releases kept only events
	}
	tx.Capacity.disruptions.recall(stored)
	for name := range stored.Evicted {
		tx.rebookJob(ParseKey(name))
	}
	for queue := range stored.EvictedQueues {
		tx.rebookQueue(queue)
	}
	tx.version++
}

// ParseKey reads what JobKey.String wrote.
func ParseKey(name string) nomad.JobKey {
	namespace, id, _ := strings.Cut(name, "/")
	return nomad.JobKey{Namespace: namespace, ID: id}
}
