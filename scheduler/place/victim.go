package place

import "time"

// eviction says whose work a request may end.
type eviction struct {
	p       *Planner
	r       *Request
	sh      *shape
	own     standing // of the request
	deficit Charge   // what its own queue must give up first, at its limit
	now     time.Time
	spared  map[string]bool // the group itself, and who is a victim already
	ranked  *standings      // nil without quotas
}

func (p *Planner) newEviction(r *Request, sh *shape, now time.Time, spared map[string]bool) *eviction {
	return &eviction{p: p, r: r, sh: sh, now: now, spared: spared, own: standing{priority: r.Priority}}
}

// rank finds out what quotas have to say. It looks at all work in queues, so it
// is left until something might have to go.
func (e *eviction) rank() {
	if e.p.quotas == nil || e.ranked != nil {
		return
	}
	charge := e.p.leastCharge(e.sh)
	e.ranked = e.p.standings()
	e.own = e.ranked.withRequest(e.p.snap, e.r, charge)
	e.deficit = e.p.quotas.deficit(e.p.snap, e.r.Queue, charge)
}

// reclaims reports whether work of equal or higher priority may have to go.
func (e *eviction) reclaims() bool { return e.p.quotas != nil && e.r.Queue != "" }

// allowed reports whether a usage may be evicted for the request: it must be
// of lower [standing]. Equal or higher priority, and work of a protected queue,
// only gives way where it is on what its queue has borrowed, or has no queue,
// and the request's queue wants its own: never in the same queue, and not
// across trees of queues while its tree is within its guarantee. A request
// whose queue is at its limit can only take from its own queue.
func (e *eviction) allowed(u *Usage) bool {
	if u.protected(e.now) || e.r.SpareGangs && u.Gang != "" || e.spared[u.ID] || (e.r.Job != "" && u.Job == e.r.Job && u.Namespace == e.r.Namespace) {
		return false
	}
	if e.deficit != (Charge{}) && u.Queue != e.r.Queue {
		return false
	}
	if e.ranked == nil {
		return e.r.Priority > u.Priority
	}
	theirs, known := e.ranked.of[u.ID]
	if !known {
		theirs.priority = u.Priority
	}
	if e.own.compare(theirs) <= 0 {
		return false
	}
	q := e.p.quotas
	higher := e.r.Priority > u.Priority && !q.queues[u.Queue].Protected
	if u.Queue == e.r.Queue {
		return higher
	}
	apart := q.root(u.Queue) != q.root(e.r.Queue)
	return higher || (e.own.leaf && !theirs.leaf && !(apart && theirs.root))
}
