package place

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Rules is what quotas say about who yields to whom; the zero value knows none.
type Rules struct {
	Quotas *quota.Quotas
	Ranks  func() *quota.Ranks
	Order  func() *quota.Order
}

// eviction says whose work a request may end, or have moved.
type eviction struct {
	snap    *cluster.Snapshot
	rules   Rules
	r       *Request
	sh      *fit.Shape
	own     quota.Rank   // of the request
	deficit quota.Charge // what its own queue must give up first, at its limit
	now     time.Time
	spared  map[string]bool // the group itself, and who is a victim already
	ranks   *quota.Ranks    // nil without quotas
	order   *quota.Order    // of queues; nil without quotas

	// movable selects what may be moved, where work is moved and not ended: of any rank.
	movable func(*cluster.Usage) bool
}

func newEviction(s *cluster.Snapshot, rules Rules, r *Request, sh *fit.Shape, now time.Time, spared map[string]bool) *eviction {
	return &eviction{snap: s, rules: rules, r: r, sh: sh, now: now, spared: spared, own: quota.Unranked(r.Priority)}
}

// rank finds out what quotas have to say. Where work has come or gone it goes through
// all that is in queues, so it is left until something might have to go.
func (e *eviction) rank() {
	if e.rules.Quotas == nil || e.ranks != nil {
		return
	}
	charge := e.sh.LeastCharge(e.snap)
	e.ranks, e.order = e.rules.Ranks(), e.rules.Order()
	e.own = e.ranks.RankOf(quota.Claim{ID: e.r.ID, Queue: e.r.Queue, Priority: e.r.Priority, Charge: charge})
	e.deficit = e.rules.Quotas.Deficit(e.snap, e.r.Queue, charge)
}

// reclaims reports whether work of equal or higher priority may have to go.
func (e *eviction) reclaims() bool { return e.r.OnlyIdle || e.rules.Quotas != nil && e.r.Queue != "" }

// hopeless reports that nothing may be evicted for the request, wherever it runs.
func (e *eviction) hopeless() bool {
	if e.r.OnlyIdle {
		return e.snap.Reclaimable == 0
	}
	return !e.reclaims() && !e.snap.AnyBelow(e.r.Priority)
}

// allowed reports whether a usage may be evicted for the request: it must be of
// lower rank and yield ([quota.Quotas.Yields]). A request whose queue is at its
// limit can only take from its own queue.
func (e *eviction) allowed(u *cluster.Usage) bool {
	if u.Protected(e.now) || e.r.SpareGangs && u.Gang != "" || e.spared[u.ID] || (e.r.Job != "" && u.Job == e.r.Job && u.Namespace == e.r.Namespace) {
		return false
	}
	if u.Spent && u.Queue == e.r.Queue {
		return false
	}
	if e.movable != nil {
		return e.movable(u)
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

// protectedUntil is when the first of a node's work that is protected for a time is so no
// longer; zero where there is none.
func (e *eviction) protectedUntil(n *cluster.NodeState) (first time.Time) {
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
