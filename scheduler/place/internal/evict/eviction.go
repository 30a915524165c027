// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/ranking"
)

// Rules is what quotas say about who yields to whom; the zero value knows none.
type Rules struct {
	Quotas *quota.Quotas
	Ranks  func() *quota.Ranks
	Order  func() *quota.Order
	Ranked *ranking.Log // of the first pools of nodes where work got another rank
}

// Eviction says whose work a request may end, or have moved.
type Eviction struct {
	snap    *cluster.Snapshot
	rules   Rules
	r       *fit.Request
	sh      *fit.Shape
	own     quota.Rank   // of the request
	deficit quota.Charge // what its own queue must give up first, at its limit
	now     time.Time
	spared  map[string]bool // the group itself, and who is a victim already
	ranks   *quota.Ranks    // nil without quotas
	order   *quota.Order    // of queues; nil without quotas

	// Movable selects the work that may be moved, where work is moved and not ended: of any rank.
	Movable func(*cluster.Usage) bool
	// Ever counts work that is spared only for now, too: for its first time, or after evictions.
	Ever bool
}

// New is the eviction of work for a request of a shape at a moment. Spared work, by usage ID, does not go.
func New(s *cluster.Snapshot, rules Rules, r *fit.Request, sh *fit.Shape, now time.Time, spared map[string]bool) *Eviction {
	return &Eviction{snap: s, rules: rules, r: r, sh: sh, now: now, spared: spared, own: quota.Unranked(r.Priority)}
}

// findRanks finds out what quotas have to say. Where work has come or gone it goes through
// all that is in queues, so it is left until something might have to go.
func (e *Eviction) findRanks() {
	if e.rules.Quotas == nil || e.ranks != nil {
		return
	}
	charge := e.sh.LeastCharge(e.snap)
	e.ranks, e.order = e.rules.Ranks(), e.rules.Order()
	e.own = e.ranks.RankOf(quota.Claim{ID: e.r.ID, Queue: e.r.Queue, Priority: e.r.Priority, Charge: charge})
	e.deficit = e.rules.Quotas.Deficit(e.snap, e.r.Queue, charge)
}

// reclaims reports whether work of equal or higher priority may have to go.
func (e *Eviction) reclaims() bool {
	return e.r.OnlyIdle || e.rules.Quotas != nil && e.r.Queue != ""
}

// Hopeless reports that nothing may be evicted for the request, wherever it runs.
func (e *Eviction) Hopeless() bool {
	if e.r.OnlyIdle {
		return !e.snap.AnyReclaimable()
	}
	return !e.reclaims() && !e.snap.AnyBelow(e.r.Priority)
}

// allowed reports whether a usage may be evicted for the request: it must be of
// lower rank and yield ([quota.Quotas.Yields]). A request whose queue is at its
// limit can only take from its own queue.
func (e *Eviction) allowed(u *cluster.Usage) bool {
	if !e.Ever && (u.Protected(e.now) || u.Spent && u.Queue == e.r.Queue) || e.r.SpareGangs && u.Gang != "" || e.spared[u.ID] || (e.r.Job != "" && u.Job == e.r.Job && u.Namespace == e.r.Namespace) {
		return false
	}
	if e.Movable != nil {
		return e.Movable(u)
	}
	if e.deficit != (quota.Charge{}) && u.Queue != e.r.Queue {
		return false
	}
	if e.r.OnlyIdle {
		return u.Reclaim
	}
	if e.ranks == nil {
		return e.r.Priority > u.Priority
	}
	rank, ranked := e.ranks.Rank(u.ID)
	if !ranked {
		rank = quota.Unranked(u.Priority)
	}
	return e.rules.Quotas.Yields(rank, e.own, u.Queue, e.r.Queue)
}

// Anywhere reports whether evictions on any node would make room for the request.
func (e *Eviction) Anywhere() bool {
	return !e.Hopeless() && slices.ContainsFunc(e.snap.Pools, func(b *cluster.Pool) bool { return b != nil && b == b.Node.Pools[0] && e.helps(b.Node) })
}

// protectedUntil is when the first of a node's work that is protected for a time is so no
// longer; zero where there is none.
func (e *Eviction) protectedUntil(n *cluster.NodeState) (first time.Time) {
	for _, u := range n.Holders {
		if u.Pinned || !u.Protected(e.now) {
			continue
		}
		if until := u.Start.Add(u.MinRun); first.IsZero() || until.Before(first) {
			first = until
		}
	}
	return first
}
