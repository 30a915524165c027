// SPDX-License-Identifier: MPL-2.0

package state

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// quotas are the limits of queues, and their use over time.
type quotas struct {
	settings *settings
	allocs   *allocs
	books    *books
	limits   *place.Quotas // nil without queues
	past     *quota.Past
}

func newQuotas(s *settings, a *allocs, b *books) *quotas {
	return &quotas{settings: s, allocs: a, books: b, past: quota.NewPast(s.config.HalfLife)}
}

// configure hands the configured queues to the core. They were checked when the
// configuration was read.
func (q *quotas) configure() error {
	limits, err := q.settings.config.Quotas()
	if err != nil {
		return err
	}
	if q.past.HalfLife() != q.settings.config.HalfLife {
		q.restore(q.past.Stored())
	}
	q.limits = limits
	q.books.plan.SetQuotas(limits, q.past)
	return nil
}

// restore takes what queues held over time until a moment.
func (q *quotas) restore(held map[string]quota.Use, at time.Time) {
	q.past = quota.RestorePast(q.settings.config.HalfLife, held, at)
}

// OverQuota says why a queue may not take another charge; empty when it may.
// Borrowing is allowed as far as the limits go, as long as there is room;
// whoever's quota it is takes it back by reclaim.
func (q *quotas) OverQuota(queue string, cost place.Charge) string {
	if q.limits == nil {
		return ""
	}
	return q.limits.Over(q.books.snap, queue, cost)
}

// NeverInQuota says why a charge is over a limit even on an idle cluster.
func (q *quotas) NeverInQuota(queue string, cost place.Charge) string {
	if q.limits == nil {
		return ""
	}
	return q.limits.Over(q.books.idle, queue, cost)
}

// Exceeds reports whether a queue holds more than it may.
func (q *quotas) Exceeds(queue string) bool {
	return q.limits != nil && q.limits.Excess(q.books.snap, queue) != place.Charge{}
}

// Used is what a queue holds, and how much of that it has borrowed.
func (q *quotas) Used(queue string) (used, borrowed place.Charge) {
	if q.limits == nil {
		return place.Charge{}, place.Charge{}
	}
	return q.limits.Used(q.books.snap, queue), q.limits.Borrowed(q.books.snap, queue)
}

// HoldersIn lists what the jobs that match hold of a queue and the queues below it,
// the last in the order first.
func (q *quotas) HoldersIn(queue string, matches func(nomad.JobKey) bool) []place.Usage {
	var list []place.Usage
	for a := range q.allocs.Allocs() {
		u, booked := q.books.Usage(a.ID)
		if booked && len(u.Takes) > 0 && matches(a.Key()) && q.settings.config.Within(u.Queue, queue) {
			list = append(list, u)
		}
	}
	order := q.books.plan.Order()
	slices.SortFunc(list, func(x, y place.Usage) int { return order.Compare(turnOf(&y), turnOf(&x)) })
	return list
}

func turnOf(u *place.Usage) quota.Turn {
	return quota.Turn{ID: u.ID, Queue: u.Queue, Priority: u.Priority, Since: u.Start}
}

// account adds the present holdings of queues to their past use.
func (tx *Tx) account() {
	if tx.Queue.quotas.limits != nil {
		tx.Queue.quotas.past.Account(tx.Queue.quotas.limits, tx.Capacity.books.snap, tx.Now())
	}
}

// setQuotas hands the configured queues to the core.
func (tx *Tx) setQuotas() {
	if err := tx.Queue.quotas.configure(); err != nil {
		tx.trouble(err)
	}
}
