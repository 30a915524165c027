// SPDX-License-Identifier: MPL-2.0

package place

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/evict"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// ranks is the ranks of all work now.
func (p *Planner) ranks() *quota.Ranks {
	if st := p.ranked.ranks; st == nil || !st.Of(p.quotas) {
		p.ranked.ranks = quota.NewRanks(p.quotas, &p.snap.Ledger)
	}
	for _, id := range p.ranked.ranks.Follow() {
		if u := p.snap.Usages[id]; u != nil {
			p.ranked.log.Add(p.snap.Nodes[u.NodeID].Pools[0].ID)
		}
	}
	return p.ranked.ranks
}

// SetQuotas makes the planner keep quotas, and order by what queues held over time;
// nil for none.
func (p *Planner) SetQuotas(q *Quotas, past *quota.Past) { p.quotas, p.past = q, past }

// Order is the order of what waits at this moment; see [quota.Order].
func (p *Planner) Order() *quota.Order { return p.quotas.Order(p.snap, p.past) }

// Borrows reports whether a request would be on what its queue borrows.
func (p *Planner) Borrows(r *Request) bool {
	if p.quotas == nil || r.Queue == "" {
		return false
	}
	return p.ranks().Borrows(quota.Claim{ID: r.ID, Queue: r.Queue, Priority: r.Priority, Charge: p.LeastCharge(r)})
}

// Owns reports whether a request would be within what its queue is guaranteed.
func (p *Planner) Owns(r *Request) bool {
	return p.quotas != nil && p.quotas.Queue(r.Queue).Guarantee() != quota.Charge{} && !p.Borrows(r)
}

// Yields reports whether the work of one request would have to give way to another request, once it
// runs; see [quota.Quotas.Yields]. Without quotas the priority decides.
func (p *Planner) Yields(work, claim *Request) bool {
	if p.quotas == nil {
		return claim.Priority > work.Priority
	}
	return p.quotas.Yields(p.rankOf(work), p.rankOf(claim), work.Queue, claim.Queue)
}

func (p *Planner) rankOf(r *Request) quota.Rank {
	return p.ranks().RankOf(quota.Claim{ID: r.ID, Queue: r.Queue, Priority: r.Priority, Charge: p.LeastCharge(r)})
}

// Reclaims reports whether a request for which there is no room would have some once all has gone
// that must give way to it, also work that is spared for now.
func (p *Planner) Reclaims(r *Request, now time.Time) bool {
	e := p.eviction(r, p.shapeOf(r), now, map[string]bool{})
	e.Ever = true
	return e.Anywhere()
}

// eviction is of work for a request, as the quotas have it.
func (p *Planner) eviction(r *Request, sh *shape, now time.Time, spared map[string]bool) *evict.Eviction {
	return evict.New(p.snap, evict.Rules{Quotas: p.quotas, Ranks: p.ranks, Order: p.Order, Ranked: &p.ranked.log}, r, sh.Shape, now, spared)
}
