package place

import (
	"cmp"
	"slices"
	"time"
)

// eviction says whose work a request may end.
type eviction struct {
	p       *Planner
	r       *Request
	own     standing // of the request
	deficit Charge   // what its own queue must give up first, at its limit
	now     time.Time
	spared  map[string]bool // the group itself, and who is a victim already
	ranked  *standings      // nil without quotas
}

func (p *Planner) newEviction(r *Request, sh *shape, now time.Time, spared map[string]bool) *eviction {
	e := &eviction{p: p, r: r, now: now, spared: spared, own: standing{priority: r.Priority}}
	if p.quotas != nil {
		charge := p.leastCharge(sh)
		e.ranked = p.standings()
		e.own = e.ranked.withRequest(p.snap, r, charge)
		e.deficit = p.quotas.deficit(p.snap, r.Queue, charge)
	}
	return e
}

// allowed reports whether a usage may be evicted for the request: it must be
// of lower [standing]. Equal or higher priority, and work of a protected queue,
// only gives way where it is on what its queue has borrowed, or has no queue,
// and the request's queue wants its own: never in the same queue, and not
// across trees of queues while its tree is within its guarantee. A request
// whose queue is at its limit can only take from its own queue.
func (e *eviction) allowed(u *Usage) bool {
	if u.protected(e.now) || e.spared[u.ID] || (e.r.Job != "" && u.Job == e.r.Job && u.Namespace == e.r.Namespace) {
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

// spoils is a set of victims on one bank, with what they cost.
type spoils struct {
	bank    *bank
	victims []*Usage
	top     int   // highest priority among them
	lost    int64 // work lost, milli-seconds
}

// compareSpoils orders by lowest priority, fewest victims, least work lost,
// then by the place of the bank.
func compareSpoils(a, b *spoils) int {
	return cmp.Or(
		cmp.Compare(a.top, b.top), cmp.Compare(len(a.victims), len(b.victims)),
		cmp.Compare(a.lost, b.lost), cmp.Compare(a.bank.id, b.bank.id),
	)
}

// search finds victims on a bank that make room for the shape: all candidates
// are taken, then given back one by one as long as the task fits. What is given
// back first is the highest priority, and of one priority in one run the
// smallest, which leaves few large victims, in another the most work lost,
// which leaves cheap ones; the better outcome counts.
func (e *eviction) search(sh *shape, b *bank) (*spoils, bool) {
	candidates := e.candidates(b)
	if len(candidates) == 0 {
		return nil, false
	}
	room := e.room(sh, b)
	for _, u := range candidates {
		room.add(u, 1)
	}
	if !room.fits() {
		return nil, false
	}
	few := e.sift(room, candidates, room.value)
	cheap := e.sift(room, candidates, func(u *Usage) int64 { return -u.lostMilliSeconds(e.now) })
	if compareSpoils(cheap, few) < 0 {
		few = cheap
	}
	return few, true
}

// sift gives candidates back, of one priority the lowest rank first, and
// returns those that must go. The room is left as it was.
func (e *eviction) sift(room *room, candidates []*Usage, rank func(*Usage) int64) *spoils {
	slices.SortFunc(candidates, func(x, y *Usage) int {
		return cmp.Or(
			cmp.Compare(y.Priority, x.Priority), cmp.Compare(rank(x), rank(y)),
			cmp.Compare(y.lostMilliSeconds(e.now), x.lostMilliSeconds(e.now)), cmp.Compare(x.ID, y.ID),
		)
	})
	sp := &spoils{bank: room.bank}
	var kept []*Usage
	for _, u := range candidates {
		room.add(u, -1)
		if room.fits() {
			kept = append(kept, u)
			continue
		}
		room.add(u, 1)
		if sp.lost += u.lostMilliSeconds(e.now); len(sp.victims) == 0 || u.Priority > sp.top {
			sp.top = u.Priority
		}
		sp.victims = append(sp.victims, u)
	}
	for _, u := range kept {
		room.add(u, 1)
	}
	return sp
}

// candidates lists what may be evicted from a bank's node.
func (e *eviction) candidates(b *bank) []*Usage {
	var out []*Usage
	for _, u := range b.node.holders {
		if e.allowed(u) {
			out = append(out, u)
		}
	}
	return out
}

// room is a copy of what a bank has free, to try evictions on.
type room struct {
	shape *shape
	bank  *bank
	need  *need
	cpu   int64
	mem   int64
	cells []cell
	owed  Charge // what the request's own queue has yet to give up
	e     *eviction
}

func (e *eviction) room(sh *shape, b *bank) *room {
	r := &room{e: e, owed: e.deficit, shape: sh, bank: b, cpu: b.node.cpu, mem: b.node.memory, cells: slices.Clone(b.cells)}
	if sh.req.GPUs > 0 {
		r.need = sh.need(e.p.snap, b.kind)
	}
	return r
}

// add frees (sign 1) or takes back (sign -1) what a usage holds.
func (r *room) add(u *Usage, sign int64) {
	r.cpu += sign * u.CPUMHz
	r.mem += sign * u.MemoryMiB
	if r.e.deficit != (Charge{}) && u.Queue == r.e.r.Queue {
		r.owed = r.owed.Plus(u.charge.Times(-sign))
	}
	for _, t := range u.Takes {
		at := r.bank.node.where[t.GPU]
		if at.bank != r.bank {
			continue
		}
		c := &r.cells[at.cell]
		c.milli += int32(sign * t.Milli)
		c.slices += int32(sign * t.Slices)
		c.replicas += int32(sign * t.Replicas)
		c.tasks -= int32(sign)
	}
}

func (r *room) fits() bool {
	if r.owed.Milli > 0 || r.owed.MemoryMiB > 0 || r.shape.req.CPUMHz > r.cpu || r.shape.req.MemoryMiB > r.mem {
		return false
	}
	found := 0
	for i := range r.cells {
		if r.need != nil && r.cells[i].holds(r.need) {
			found++
		}
	}
	return found >= r.shape.req.GPUs
}

// value is how much of what the shape needs a usage would free, for choosing
// few large victims over many small ones.
func (r *room) value(u *Usage) int64 {
	var sum int64
	for _, t := range u.Takes {
		if r.need != nil && r.bank.node.where[t.GPU].bank == r.bank {
			sum += gpuMilli * max(t.Milli, t.Slices, t.Replicas)
		}
	}
	return sum + min(u.CPUMHz, r.shape.req.CPUMHz)
}
