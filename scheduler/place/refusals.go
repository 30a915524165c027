package place

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/evict"
)

// refusals is why nodes cannot take one shape. It follows the snapshot through the log of
// its pools, and looks again only at nodes where something changed.
type refusals struct {
	at   int64
	fits int
	// of is, by the ID of the first pool of a node, what the node says: [nothing],
	// [takes], or the place of a reason in counts.
	of     []int32
	counts []Reason
	places map[Reason]int32 // in counts, with no nodes
	gains  evict.Gains      // what evictions would give
}

const (
	nothing = -2 // no node, or another pool speaks for it
	takes   = -1
)

// refusalsOf is why nodes cannot take a shape now.
func (p *Planner) refusalsOf(sh *shape) *refusals {
	x, s := sh.refusals, p.snap
	ids, known := []int32(nil), false
	if x != nil {
		ids, known = s.Each.Log.Since(x.at)
	}
	if !known || len(ids) > len(s.Pools) {
		x = &refusals{places: map[Reason]int32{}}
		sh.refusals, ids = x, nil
		for id := range s.Pools {
			ids = append(ids, int32(id))
		}
	}
	for len(x.of) < len(s.Pools) {
		x.of = append(x.of, nothing)
	}
	for _, id := range ids {
		x.renew(s, sh, id)
	}
	x.at = s.Each.Log.End()
	return x
}

// renew looks again at the node of a pool.
func (x *refusals) renew(s *Snapshot, sh *shape, id int32) {
	switch was := x.of[id]; was {
	case nothing:
	case takes:
		x.fits--
	default:
		x.counts[was].Nodes--
	}
	x.of[id] = nothing
	b := s.Pools[id]
	if b == nil || b != b.Node.Pools[0] {
		return
	}
	why := sh.Refusal(s, b.Node)
	if why.Why == "" {
		x.of[id] = takes
		x.fits++
		return
	}
	at, known := x.places[why]
	if !known {
		at = int32(len(x.counts))
		x.counts, x.places[why] = append(x.counts, why), at
	}
	x.of[id] = at
	x.counts[at].Nodes++
}

// refuse says how many nodes can take a request, why the others cannot and, where none
// can, how many would after evictions.
func (p *Planner) refuse(e *Explanation, r *Request, sh *shape, now time.Time) {
	x := p.refusalsOf(sh)
	e.Fits = x.fits
	reasons := slices.Clone(x.counts)
	someday := slices.ContainsFunc(reasons, func(why Reason) bool { return why.Nodes > 0 && !why.Never })
	if ev := p.eviction(r, sh, now, nil); x.fits == 0 && someday && !ev.Hopeless() {
		helps := x.gains.Helps(ev)
		for id, at := range x.of {
			if at >= 0 && !reasons[at].Never && helps(int32(id)) {
				reasons[at].Preempted++
			}
		}
	}
	e.Reasons = slices.DeleteFunc(reasons, func(why Reason) bool { return why.Nodes == 0 })
	slices.SortFunc(e.Reasons, func(a, b Reason) int {
		return cmp.Or(b.Nodes-a.Nodes, cmp.Compare(a.Why, b.Why))
	})
}
