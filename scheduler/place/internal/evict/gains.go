// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Gains is on which nodes evictions would make a shape fit, for the claimants that asked
// last. Whoever may ask decides how many shapes and claimants there are, and gains take
// memory for each node.
type Gains struct{ kept []*gains } // the one that was asked for last at the end

// keptGains is for how many claimants a shape keeps gains.
const keptGains = 3

// gains is on which nodes evictions would make a shape fit, for all requests that may evict
// the same. It follows the snapshot and the ranks through their logs, and looks again only at
// nodes where something changed.
type gains struct {
	of     claimant
	at     int64 // position in the log of the pools
	ranked int64 // and in that of the ranks
	asked  time.Time
	// nodes is the last look at each node, by the ID of its first pool.
	nodes []gain
	// until is when work on a node that may not be evicted yet may be, and soonest the first
	// of these times; zero for none.
	until   map[int32]time.Time
	soonest time.Time
}

// claimant is what of a request decides which work it may evict, beside whose it is.
type claimant struct {
	quotas               *quota.Quotas
	queue                string
	own                  quota.Rank
	priority             int
	onlyIdle, spareGangs bool
}

type gain uint8

const (
	unseenGain gain = iota
	noGain
	someGain
)

// Helps returns what says of a node, by the ID of its first pool, whether evictions there
// would make the shape fit.
func (k *Gains) Helps(e *Eviction) func(id int32) bool {
	e.findRanks()
	g, own := k.claimantGains(e), map[int32]bool{}
	for _, u := range e.snap.OfJob(e.r.Namespace, e.r.Job) { // it does not evict itself
		own[e.snap.Nodes[u.NodeID].Pools[0].ID] = true
	}
	return func(id int32) bool {
		n := e.snap.Pools[id].Node
		if own[id] {
			return e.helps(n)
		}
		if g.nodes[id] == unseenGain {
			if g.nodes[id] = noGain; e.helps(n) {
				g.nodes[id] = someGain
			}
			g.lookAgainAt(id, e.protectedUntil(n))
		}
		return g.nodes[id] == someGain
	}
}

// claimantGains is the claimant's knowledge, up to date. Where its queue has to give up
// something first, that is different each time.
func (k *Gains) claimantGains(e *Eviction) *gains {
	of := claimant{e.rules.Quotas, e.r.Queue, e.own, e.r.Priority, e.r.OnlyIdle, e.r.SpareGangs}
	g := &gains{of: of}
	if e.deficit == (quota.Charge{}) {
		for i, known := range k.kept {
			if known.of == of {
				g = known
				k.kept = append(k.kept[:i], k.kept[i+1:]...)
				break
			}
		}
		if len(k.kept) == keptGains {
			k.kept = append(k.kept[:0], k.kept[1:]...)
		}
		k.kept = append(k.kept, g)
	}
	g.follow(e.snap, &e.rules, e.now)
	return g
}

// follow forgets gains that may be different by now.
func (g *gains) follow(s *cluster.Snapshot, rules *Rules, now time.Time) {
	pools, known := s.Each.Log.Since(g.at)
	ranked, same := rules.Ranked.Since(g.ranked)
	if g.nodes == nil || !known || !same || now.Before(g.asked) || len(pools)+len(ranked) > len(g.nodes) {
		g.nodes, g.until, g.soonest = make([]gain, len(s.Pools)), map[int32]time.Time{}, time.Time{}
	} else {
		for len(g.nodes) < len(s.Pools) {
			g.nodes = append(g.nodes, unseenGain)
		}
		for _, id := range pools {
			g.nodes[id] = unseenGain
		}
		for _, id := range ranked {
			g.nodes[id] = unseenGain
		}
	}
	g.at, g.ranked, g.asked = s.Each.Log.End(), rules.Ranked.End(), now
	if g.soonest.IsZero() || now.Before(g.soonest) {
		return
	}
	g.soonest = time.Time{}
	for id, until := range g.until {
		if now.Before(until) {
			g.lookAgainAt(id, until)
			continue
		}
		g.nodes[id] = unseenGain
		delete(g.until, id)
	}
}

// lookAgainAt notes until when a node is worth no other look; zero: until something changes there.
func (g *gains) lookAgainAt(id int32, until time.Time) {
	if until.IsZero() {
		delete(g.until, id)
		return
	}
	g.until[id] = until
	if g.soonest.IsZero() || until.Before(g.soonest) {
		g.soonest = until
	}
}
