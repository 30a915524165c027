package place

import (
	"cmp"
	"slices"
)

// prospect is what evictions on a bank can be expected to give, known without
// looking at the bank. Victims are counted for its whole node.
type prospect struct {
	priority int   // the lowest that holds something
	youngest int64 // Unix second of the latest start at that priority
	milli    int32 // GPU held at that priority
	largest  int32 // most GPU that one usage holds, of any priority
	kind     int32
	partly   partly
	slices   int32 // of one GPU; 0 where it has none
	idle     uint8 // GPUs of share 1000
	held     bool  // by anybody
}

// setProspects brings the prospects of a node's banks up to date with who holds
// parts of it.
func (s *Snapshot) setProspects(n *nodeState) {
	var p prospect
	for i, u := range n.holders {
		if i == 0 || u.Priority < p.priority {
			p.priority, p.milli, p.youngest = u.Priority, 0, u.started()
		}
		held := int32(min(u.charge.Milli+int64(len(u.Takes)), maxGPUs*gpuMilli)) // charges are rounded down
		if u.Priority == p.priority {
			p.milli = min(p.milli+held, maxGPUs*gpuMilli)
			p.youngest = max(p.youngest, u.started())
		}
		p.largest = max(p.largest, held)
	}
	p.held = len(n.holders) > 0
	for _, b := range n.banks {
		p.kind, p.idle, p.partly, p.slices = b.kind, uint8(b.idle), b.partly, 0
		if b.kind >= 0 {
			p.slices = int32(s.kinds[b.kind].Slices)
		}
		s.prospects[b.id] = p
	}
}

// bound is the least that victims on a bank can cost, in the order that
// [compareSpoils] has: what is found there is never cheaper.
type bound struct {
	top     int // highest priority among the victims
	victims int
	since   int64 // of equal bounds, the one with the youngest work is tried first
}

func (a bound) compare(b bound) int {
	if a.top != b.top {
		return cmp.Compare(a.top, b.top)
	}
	return cmp.Compare(a.victims, b.victims)
}

// bound is that of a prospect for a shape. Where the lowest priority does not
// hold as much as is missing, a higher one must give way too.
func (p *prospect) bound(sh *shape, nd *need) bound {
	b := bound{top: p.priority, victims: 1, since: p.youngest}
	short := p.short(sh, nd)
	if short > p.milli {
		b.top++
	}
	if p.largest > 0 && short > p.largest {
		b.victims = int((short + p.largest - 1) / p.largest)
	}
	return b
}

// hope is what no lead to the bank is better than, whatever the shape.
func (p *prospect) hope(id int) lead {
	return lead{bound{top: p.priority, victims: 1, since: p.youngest}, id}
}

// short is the least GPU that must be freed, in milli.
func (p *prospect) short(sh *shape, nd *need) int32 {
	gpus := int32(sh.req.GPUs) - int32(p.idle)
	if gpus <= 0 {
		return 0
	}
	perGPU := max(0, int32(nd.take.Milli)-p.partly.milli)
	if missing := int32(nd.take.Slices) - p.partly.slices; missing > 0 {
		perGPU = max(perGPU, int32(int64(missing)*gpuMilli/int64(p.slices)))
	}
	return gpus * perGPU
}

// lead is a bank worth a search, with what can be expected there at best.
type lead struct {
	bound
	id int
}

func (a lead) compare(b lead) int {
	if c := a.bound.compare(b.bound); c != 0 {
		return c
	}
	if a.since != b.since {
		return cmp.Compare(b.since, a.since)
	}
	return cmp.Compare(a.id, b.id)
}

// searched is how many banks are searched for victims in any case: those that
// promise the lowest priority, then the fewest victims, then the youngest work.
const searched = 32

// best finds the cheapest victims: on no other bank are they of lower priority
// or fewer. Of equally many, those of the banks in searched that lose the least
// work.
func (e *eviction) best(sh *shape) *spoils {
	leads := e.leads(sh)
	var best *spoils
	for _, l := range leads {
		if best != nil && (l.bound.compare(best.bound()) > 0 || best.free(l)) {
			return best
		}
		best = e.better(best, sh, l.id)
	}
	if len(leads) < searched {
		return best // there are no more
	}
	last := leads[searched-1]
	for id := range e.p.snap.prospects {
		if best != nil && last.bound.compare(best.bound()) >= 0 {
			return best // nor can others do better
		}
		l, ok := e.lead(sh, id)
		if ok && l.compare(last) > 0 && (best == nil || l.bound.compare(best.bound()) < 0) {
			best = e.better(best, sh, id)
		}
	}
	return best
}

// better is the cheaper of some victims and those of a bank.
func (e *eviction) better(best *spoils, sh *shape, id int) *spoils {
	b := e.p.snap.banks[id]
	if !e.p.snap.could(sh, b) {
		return best
	}
	if sp, ok := e.search(sh, b); ok && (best == nil || compareSpoils(sp, best) < 0) {
		return sp
	}
	return best
}

// leads lists the most promising banks, the best first.
func (e *eviction) leads(sh *shape) []lead {
	out := make([]lead, 0, searched+1)
	for id := range e.p.snap.prospects {
		full := len(out) == searched
		if full && e.p.snap.prospects[id].hope(id).compare(out[searched-1]) >= 0 {
			continue
		}
		l, ok := e.lead(sh, id)
		if !ok || full && l.compare(out[searched-1]) >= 0 || !e.p.snap.could(sh, e.p.snap.banks[id]) {
			continue
		}
		at, _ := slices.BinarySearchFunc(out, l, lead.compare)
		out = slices.Insert(out, at, l)
		out = out[:min(searched, len(out))]
	}
	return out
}

// lead is a bank as a lead; ok is false when nothing there may go, or not
// enough.
func (e *eviction) lead(sh *shape, id int) (lead, bool) {
	p := &e.p.snap.prospects[id]
	if !p.held || (p.priority >= e.r.Priority && !e.reclaims()) {
		return lead{}, false
	}
	nd := &need{ok: true} // of shapes without GPUs
	if sh.req.GPUs > 0 {
		if p.kind < 0 {
			return lead{}, false
		}
		nd = sh.need(e.p.snap, p.kind)
	}
	l := lead{p.bound(sh, nd), id}
	return l, nd.ok && (l.top < e.r.Priority || e.reclaims())
}
