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
	ask     int64 // milli that the request will hold
	deficit int64 // milli that its own queue must give up first, at its limit
	now     time.Time
	spared  map[string]bool  // the group itself, and who is a victim already
	used    map[string]int64 // held per queue, descendants included
}

func (p *Planner) newEviction(r *Request, sh *shape, now time.Time, spared map[string]bool) *eviction {
	e := &eviction{p: p, r: r, now: now, spared: spared, ask: p.leastCharge(sh)}
	if p.quotas != nil {
		e.used = p.quotas.usedAll(p.snap)
		e.deficit = p.quotas.deficit(e.used, r.Queue, e.ask)
	}
	return e
}

// allowed reports whether a usage may be evicted for the request, when gone is
// already taken from the queues:
//
//   - by priority, when the request's is higher. Work within its queue's
//     guarantee gives way only to work of the same queue or within its own;
//   - by quota, when the request stays within its queue's guarantee and the
//     usage is on what its queue has borrowed.
//
// Work that is entitled can thus only be displaced by entitled work of higher
// priority, and everything else by entitled work or higher priority: there is
// no cycle in which tasks evict each other forever. A request whose queue is
// at its limit can only take from its own queue.
func (e *eviction) allowed(u *Usage, gone map[string]int64) bool {
	if u.protected(e.now) || u.ID == e.r.ID || (e.r.Job != "" && u.Job == e.r.Job && u.Namespace == e.r.Namespace) {
		return false
	}
	higher := e.r.Priority > u.Priority
	if e.deficit > 0 && u.Queue != e.r.Queue {
		return false
	}
	q := e.p.quotas
	if q == nil || u.Queue == "" || u.Queue == e.r.Queue {
		return higher
	}
	below := q.common(e.r.Queue, u.Queue)
	entitled := q.entitled(e.used, e.r.Queue, below, e.ask)
	borrowed := q.borrowing(e.used, gone, u.Queue, below)
	return (entitled && borrowed) || (higher && (entitled || borrowed))
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

// search finds victims on a bank that make room for the shape: the candidates
// of the lowest priorities that suffice, large before small, and then given
// back what turns out not to be needed, the most costly first.
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
	keep := func(u *Usage) bool { // give it back when the task still fits
		room.add(u, -1)
		if room.fits() {
			return true
		}
		room.add(u, 1)
		return false
	}
	// Highest priority first; within it the smallest, as few large ones beat
	// many small ones; then the most work lost.
	slices.SortFunc(candidates, func(x, y *Usage) int {
		return cmp.Or(
			cmp.Compare(y.Priority, x.Priority), cmp.Compare(room.value(x), room.value(y)),
			cmp.Compare(y.lostMilliSeconds(e.now), x.lostMilliSeconds(e.now)), cmp.Compare(x.ID, y.ID),
		)
	})
	sp := &spoils{bank: b}
	for _, u := range candidates {
		if keep(u) {
			continue
		}
		sp.victims = append(sp.victims, u)
		sp.lost += u.lostMilliSeconds(e.now)
		if len(sp.victims) == 1 || u.Priority > sp.top {
			sp.top = u.Priority
		}
	}
	return sp, true
}

// candidates lists what may be evicted from a bank's node, lowest priority and
// least work lost first. From another queue no more is taken than it borrowed.
func (e *eviction) candidates(b *bank) []*Usage {
	var out []*Usage
	holders := slices.Clone(b.node.holders)
	slices.SortStableFunc(holders, func(x, y *Usage) int {
		return cmp.Or(cmp.Compare(x.Priority, y.Priority), cmp.Compare(x.lostMilliSeconds(e.now), y.lostMilliSeconds(e.now)))
	})
	gone := map[string]int64{}
	for _, u := range holders {
		if e.spared[u.ID] || !e.allowed(u, gone) {
			continue
		}
		out = append(out, u)
		if e.p.quotas != nil {
			for _, o := range e.p.quotas.path(u.Queue) {
				gone[o] += e.p.snap.charge(b.node, u)
			}
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
	local map[int]int // GPU position to cell
	owed  int64       // milli that the request's own queue has yet to give up
	e     *eviction
}

func (e *eviction) room(sh *shape, b *bank) *room {
	r := &room{e: e, owed: e.deficit, shape: sh, bank: b, cpu: b.node.cpu, mem: b.node.memory, cells: slices.Clone(b.cells), local: map[int]int{}}
	if sh.req.GPUs > 0 {
		r.need = sh.need(e.p.snap, b.kind)
	}
	for i, g := range b.gpus {
		r.local[g] = i
	}
	return r
}

// add frees (sign 1) or takes back (sign -1) what a usage holds.
func (r *room) add(u *Usage, sign int64) {
	r.cpu += sign * u.CPUMHz
	r.mem += sign * u.MemoryMiB
	if r.e.deficit > 0 && u.Queue == r.e.r.Queue {
		r.owed -= sign * r.e.p.snap.charge(r.bank.node, u)
	}
	for _, t := range u.Takes {
		i, ok := r.local[t.GPU]
		if !ok {
			continue
		}
		c := &r.cells[i]
		c.milli += int32(sign * t.Milli)
		c.slices += int32(sign * t.Slices)
		c.replicas += int32(sign * t.Replicas)
		c.tasks -= int32(sign)
	}
}

func (r *room) fits() bool {
	if r.owed > 0 || r.shape.req.CPUMHz > r.cpu || r.shape.req.MemoryMiB > r.mem {
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
		if _, ok := r.local[t.GPU]; ok && r.need != nil {
			sum += gpuMilli * max(t.Milli, t.Slices, t.Replicas)
		}
	}
	return sum + min(u.CPUMHz, r.shape.req.CPUMHz)
}
