package place

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// What quotas are made of; package quota says what they mean.
type (
	Charge     = quota.Charge
	Queue      = quota.Queue
	Quotas     = quota.Quotas
	QuotaError = quota.Error
)

// ErrQuota is wrapped when a queue's limit forbids a placement.
var ErrQuota = quota.ErrOver

// NewQuotas checks queues; see [quota.New].
func NewQuotas(queues []Queue) (*Quotas, error) { return quota.New(queues) }

// rankedWork is the ranks of all work, and until when they hold.
type rankedWork struct {
	ranks   quota.Ranks
	quotas  *Quotas
	through int64 // position in the change log
}

// ranks works out the ranks of all work, once per change of the snapshot.
func (p *Planner) ranks() quota.Ranks {
	at := p.snap.each.log.End()
	if p.ranked.quotas != p.quotas || p.ranked.through != at {
		p.ranked = rankedWork{p.quotas.Ranks(p.snap), p.quotas, at}
	}
	return p.ranked.ranks
}

// SetQuotas makes the planner keep quotas, and order by what queues held over time;
// nil for none.
func (p *Planner) SetQuotas(q *Quotas, past *quota.Past) { p.quotas, p.past = q, past }

// Order is the order of what waits at this moment; see [quota.Order].
func (p *Planner) Order() *quota.Order { return p.quotas.Order(p.snap, p.past) }
