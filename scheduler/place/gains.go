package place

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// gains is on which nodes evictions would make a shape fit, for all requests that may evict
// the same. It follows the snapshot and the ranks through their logs, and looks again only at
// nodes where something changed.
type gains struct {
	of     claimant
	at     int64 // position in the log of the pools
	ranked int64 // and in that of the ranks
	asked  time.Time
	// nodes is what was seen of each node, by the ID of its first pool.
	nodes []gain
	// until is when work on a node that may not be evicted yet may be, and soonest the first
	// of these times; zero for none.
	until   map[int32]time.Time
	soonest time.Time
}

// claimant is what of a request decides which work it may evict, beside whose it is.
type claimant struct {
	quotas               *Quotas
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

// keptGains is for how many claimants a shape keeps gains. Whoever may ask decides how many
// shapes and claimants there are, and gains take memory for each node.
const keptGains = 3

// countGains counts, per reason, the nodes that would do after evictions.
func (x *refusals) countGains(p *Planner, e *eviction, reasons []Reason) {
	e.rank()
	g := x.gainsFor(p, e)
	s, own := e.snap, map[int32]bool{}
	for _, u := range s.OfJob(e.r.Namespace, e.r.Job) { // it does not evict itself
		own[s.Nodes[u.NodeID].Pools[0].ID] = true
	}
	for id, at := range x.of {
		if at < 0 || reasons[at].Never {
			continue
		}
		found := g.nodes[id]
		switch {
		case len(own) > 0 && own[int32(id)]:
			found = look(e, s.Pools[id].Node)
		case found == unseenGain:
			found = look(e, s.Pools[id].Node)
			g.nodes[id] = found
			g.wait(int32(id), e.protectedUntil(s.Pools[id].Node))
		}
		if found == someGain {
			reasons[at].Preempted++
		}
	}
}

// gainsFor is what is known for the claimant, up to date. Where its queue has to give up
// something first, that is different each time.
func (x *refusals) gainsFor(p *Planner, e *eviction) *gains {
	of := claimant{e.rules.Quotas, e.r.Queue, e.own, e.r.Priority, e.r.OnlyIdle, e.r.SpareGangs}
	g := &gains{of: of}
	if e.deficit == (Charge{}) {
		for i, known := range x.gains {
			if known.of == of {
				g = known
				x.gains = append(x.gains[:i], x.gains[i+1:]...)
				break
			}
		}
		if len(x.gains) == keptGains {
			x.gains = append(x.gains[:0], x.gains[1:]...)
		}
		x.gains = append(x.gains, g)
	}
	g.follow(p, e.now)
	return g
}

// follow forgets what may be different by now.
func (g *gains) follow(p *Planner, now time.Time) {
	pools, known := p.snap.Each.Log.Since(g.at)
	ranked, same := p.ranked.log.Since(g.ranked)
	if g.nodes == nil || !known || !same || now.Before(g.asked) || len(pools)+len(ranked) > len(g.nodes) {
		g.nodes, g.until, g.soonest = make([]gain, len(p.snap.Pools)), map[int32]time.Time{}, time.Time{}
	} else {
		for len(g.nodes) < len(p.snap.Pools) {
			g.nodes = append(g.nodes, unseenGain)
		}
		for _, id := range pools {
			g.nodes[id] = unseenGain
		}
		for _, id := range ranked {
			g.nodes[id] = unseenGain
		}
	}
	g.at, g.ranked, g.asked = p.snap.Each.Log.End(), p.ranked.log.End(), now
	if g.soonest.IsZero() || now.Before(g.soonest) {
		return
	}
	g.soonest = time.Time{}
	for id, until := range g.until {
		if now.Before(until) {
			g.wait(id, until)
			continue
		}
		g.nodes[id] = unseenGain
		delete(g.until, id)
	}
}

// wait notes until when a node is worth no other look; zero: until something changes there.
func (g *gains) wait(id int32, until time.Time) {
	if until.IsZero() {
		delete(g.until, id)
		return
	}
	g.until[id] = until
	if g.soonest.IsZero() || until.Before(g.soonest) {
		g.soonest = until
	}
}

// look looks at a node.
func look(e *eviction, n *cluster.NodeState) gain {
	if e.helps(n) {
		return someGain
	}
	return noGain
}
