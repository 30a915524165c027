package state

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// setQuotas hands the configured queues to the core. They were checked when the
// configuration was read.
func (tx *Tx) setQuotas() {
	q, err := tx.Config().Quotas()
	if err != nil {
		tx.Trouble(err)
		return
	}
	if tx.past.HalfLife() != tx.Config().HalfLife {
		held, at := tx.past.Stored()
		tx.past = quota.RestorePast(tx.Config().HalfLife, held, at)
	}
	tx.quotas = q
	tx.books.plan.SetQuotas(q, tx.past)
}

// Account adds what queues hold to what they held over time.
func (tx *Tx) Account() {
	if tx.quotas != nil {
		tx.past.Account(tx.quotas, tx.books.snap, tx.Now())
	}
}

// OverQuota says why a queue may not take a charge more; empty when it may.
// Borrowing is allowed as far as the limits go, as long as there is room;
// whoever's quota it is takes it back by reclaim.
func (r *Reader) OverQuota(queue string, cost place.Charge) string {
	if r.quotas == nil {
		return ""
	}
	return r.quotas.Over(r.books.snap, queue, cost)
}

// OverWithOwed says why a queue may not take a charge more beside what others were
// admitted for and Nomad may start at any time; empty when it may. What is owed is that
// of the queue, or one above it, whose limit forbids it. What a job owes itself is left
// out.
func (r *Reader) OverWithOwed(queue string, cost place.Charge, without nomad.JobKey) (owed place.Charge, why string) {
	for q := r.Config().Queue(queue); q != nil && why == ""; q = r.Config().Queue(q.Parent) {
		owed = r.Owed(q.Name, without)
		why = r.OverQuota(q.Name, cost.Plus(owed))
	}
	return owed, why
}

// NeverInQuota says why a charge is over a limit even on an idle cluster.
func (r *Reader) NeverInQuota(queue string, cost place.Charge) string {
	if r.quotas == nil {
		return ""
	}
	return r.quotas.Over(r.books.idle, queue, cost)
}

// Exceeds reports whether a queue holds more than it may.
func (r *Reader) Exceeds(queue string) bool {
	return r.quotas != nil && r.quotas.Excess(r.books.snap, queue) != place.Charge{}
}

// Used is what a queue holds, and how much of that it has borrowed.
func (r *Reader) Used(queue string) (used, borrowed place.Charge) {
	if r.quotas == nil {
		return place.Charge{}, place.Charge{}
	}
	return r.quotas.Used(r.books.snap, queue), r.quotas.Borrowed(r.books.snap, queue)
}

// HoldersIn lists what the jobs that match hold of a queue and the queues below it,
// the last in the order first.
func (r *Reader) HoldersIn(queue string, matches func(nomad.JobKey) bool) []place.Usage {
	var list []place.Usage
	for a := range r.Allocs() {
		u, booked := r.Usage(a.ID)
		if booked && len(u.Takes) > 0 && matches(a.Key()) && r.IsWithin(u.Queue, queue) {
			list = append(list, u)
		}
	}
	order := r.Order()
	slices.SortFunc(list, func(x, y place.Usage) int { return order.Compare(turnOf(&y), turnOf(&x)) })
	return list
}

func turnOf(u *place.Usage) quota.Turn {
	return quota.Turn{ID: u.ID, Queue: u.Queue, Priority: u.Priority, Since: u.Start}
}
