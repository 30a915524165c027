package decide

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// setQuotas hands the configured queues to the core. They were checked when the
// configuration was read.
func (b *Book) setQuotas() {
	q, err := b.config.Quotas()
	if err != nil {
		b.log.trouble(b.now(), err)
		return
	}
	b.quotas = q
	b.plan.SetQuotas(q)
}

// queueOf is the queue that pays for a group of a known job.
func (b *Book) queueOf(key nomad.JobKey, group string) *config.Queue {
	named := ""
	if j := b.jobs[key]; j != nil {
		if g := j.Group(group); g != nil {
			named = g.Queue
		}
	}
	q, err := b.config.QueueFor(key.Namespace, named)
	if err != nil {
		// Submitted around the service with a queue that it may not use: its
		// namespace pays.
		q, _ = b.config.QueueFor(key.Namespace, "")
	}
	return q
}

// requeue books all allocs again, after queues changed.
func (b *Book) requeue() {
	for _, id := range b.order {
		for _, usage := range b.snap.UsagesOn(id) {
			if a := b.allocs[usage.ID]; a != nil {
				b.unbook(a.ID)
				b.book(b.usageOf(a))
			}
		}
	}
}

// overQuota says why a queue may not take a charge more; empty when it may.
// Borrowing is allowed as far as the limits go, as long as there is room;
// whoever's quota it is takes it back by reclaim.
func (b *Book) overQuota(queue string, cost place.Charge) string {
	return over(b.quotas, b.snap, queue, cost)
}

// neverInQuota says why a charge is over a limit even on an idle cluster.
func (b *Book) neverInQuota(queue string, cost place.Charge) string {
	return over(b.quotas, b.empty, queue, cost)
}

func over(q *place.Quotas, s *place.Snapshot, queue string, cost place.Charge) string {
	if q == nil {
		return ""
	}
	return q.Over(s, queue, cost)
}
