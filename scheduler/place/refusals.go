// SPDX-License-Identifier: MPL-2.0

package place

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/evict"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// refusals is why nodes cannot take one shape. It follows the snapshot through the log of
// its pools, and looks again only at nodes where something changed.
type refusals struct {
	at   int64
	fits int
	// of is, by the ID of the first pool of a node, what the node says: [nothing],
	// [takes], or the place of a reason in counts.
	of     []int32
	counts []fit.Reason
	places map[fit.Reason]int32 // in counts, with no nodes
	gains  evict.Gains          // what evictions would give
}

const (
	nothing = -2 // no node, or another pool speaks for it
	takes   = -1
)

// follow brings them up to date for a shape, the same each time.
func (x *refusals) follow(s *cluster.Snapshot, sh *fit.Shape) {
	ids, known := s.Each.Log.Since(x.at)
	if x.places == nil || !known || len(ids) > len(s.Pools) {
		*x = refusals{places: map[fit.Reason]int32{}}
		ids = nil
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
}

// renew looks again at the node of a pool.
func (x *refusals) renew(s *cluster.Snapshot, sh *fit.Shape, id int32) {
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
