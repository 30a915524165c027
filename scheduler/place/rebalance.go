// SPDX-License-Identifier: MPL-2.0

package place

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/score"
)

// Move is a proposal to take work from where it is to another node.
type Move struct {
	Why  MoveReason
	From Usage
	To   Placement
	// GainMilli is the GPU milli that are won: not wasted any more, relieved of a
	// measured overload, or emptied; for MovesForRoom what starts.
	GainMilli int64
	// LostMilliSeconds is the work that moving throws away: what ran since the work was
	// saved last.
	LostMilliSeconds int64
}

// MoveReason is what a move is for.
type MoveReason uint8

const (
	MovesForWaste MoveReason = iota // less goes to waste
	MovesForHeat                    // a GPU that several tasks overload has one less
	MovesToEmpty                    // its node is to be emptied
	MovesForRoom                    // something that waits starts in its place
)

// Rebalancing bounds what [Planner.Rebalance] and [Planner.RoomByMoving] propose.
type Rebalancing struct {
	Moves        int               // the most moves
	Horizon      time.Duration     // a gain is enjoyed for so long; default one hour
	MinMilli     int64             // smallest gain worth a move; default 50
	PoolsPerMove int               // pools looked at per move, those with the most waste; default 16
	CanMove      func(*Usage) bool // nil: all that are not protected
	// Request is the request of a usage; nil: its holdings, on the same kind of GPU in
	// the same datacenter and pool. Usages that it does not know are not moved.
	Request func(*Usage) (Request, bool)
	// Hot are the GPUs, by ID, that have been measured to be fully used for long.
	Hot map[string]bool
	// Emptying are the nodes, by ID, that are to be emptied. Work that ends by itself is
	// moved off them; other work Nomad moves.
	Emptying map[string]bool

	closed map[string]bool // nodes that have got work off a hot GPU: measurements there are old
}

// Rebalance proposes moves that pay: over the horizon, what they win is worth more
// than the work that they lose. The moves are to be made in their
// order; each is chosen with the earlier ones made. The snapshot is left as it
// was.
func (p *Planner) Rebalance(o Rebalancing, now time.Time) []Move {
	p.prepare()
	o = o.defaults(p)
	t := p.begin()
	defer t.rollback()
	var moves []Move
	moved := map[string]bool{}
	for len(moves) < o.Moves {
		m, ok := p.bestMove(&o, now, moved)
		if !ok {
			break
		}
		if t.release(m.From.ID) != nil || t.apply(m.To.Usage) != nil {
			break
		}
		moved[m.From.ID] = true
		if moves = append(moves, m); m.Why == MovesForHeat {
			o.closed[m.To.NodeID] = true
		}
	}
	return moves
}

func (o Rebalancing) defaults(p *Planner) Rebalancing {
	if o.Horizon == 0 {
		o.Horizon = time.Hour
	}
	if o.MinMilli == 0 {
		o.MinMilli = 50
	}
	if o.PoolsPerMove == 0 {
		o.PoolsPerMove = 16
	}
	if o.CanMove == nil {
		o.CanMove = func(*Usage) bool { return true }
	}
	if o.Request == nil {
		o.Request = p.requestOf
	}
	o.closed = map[string]bool{}
	return o
}

// takes reports whether work that is moved may go to a node.
func (o *Rebalancing) takes(n *cluster.NodeState) bool {
	return !o.Emptying[n.Spec.ID] && !o.closed[n.Spec.ID]
}

// movable reports whether a usage may be moved at now.
func (o *Rebalancing) movable(u *Usage, now time.Time) bool { return !u.Protected(now) && o.CanMove(u) }

// worth is the gain over the horizon, less the loss, in
// milli-seconds.
func (m *Move) worth(o *Rebalancing) int64 {
	return m.GainMilli*int64(o.Horizon/time.Second) - m.LostMilliSeconds
}

// bestMove tries every movable usage of the pools with the most waste, of those with hot
// GPUs, and of the nodes that are to be emptied.
func (p *Planner) bestMove(o *Rebalancing, now time.Time, moved map[string]bool) (best Move, found bool) {
	try := func(u *Usage, why MoveReason) {
		if moved[u.ID] || !o.movable(u, now) {
			return
		}
		m, ok := p.tryMove(*u, why, o, now)
		if ok && (!found || m.worth(o) > best.worth(o)) {
			best, found = m, true
		}
	}
	for _, b := range p.wasteful(o.PoolsPerMove) {
		for _, u := range slices.Clone(b.Node.Holders) {
			try(u, MovesForWaste)
		}
	}
	for _, id := range p.snap.NodeIDs() {
		n := p.snap.Nodes[id]
		for _, u := range slices.Clone(n.Holders) {
			switch {
			case o.Emptying[id] && u.Ends:
				try(u, MovesToEmpty)
			case p.snap.HotUse(u, o.Hot) > 0:
				try(u, MovesForHeat)
			}
		}
	}
	return best, found
}

// wasteful lists the pools with the most expected waste, the most first.
func (p *Planner) wasteful(n int) []*cluster.Pool {
	var out []*cluster.Pool
	for _, b := range p.snap.Pools {
		if b == nil || b.Kind < 0 || len(b.Node.Holders) == 0 {
			continue
		}
		at := len(out)
		for at > 0 && p.scorer.WasteNow(b, p.scorer.Fine) > p.scorer.WasteNow(out[at-1], p.scorer.Fine) {
			at--
		}
		if at < n {
			out = slices.Insert(out, at, b)
			out = out[:min(n, len(out))]
		}
	}
	return out
}

// tryMove takes a usage away, finds its best place on another node and works out what
// that gains. The snapshot is left as it was.
func (p *Planner) tryMove(u Usage, why MoveReason, o *Rebalancing, now time.Time) (Move, bool) {
	r, ok := o.Request(&u)
	if !ok {
		return Move{}, false
	}
	sh := p.shapeOf(&r)
	from := p.snap.Nodes[u.NodeID]
	b := from.Pools[0]
	if len(u.Takes) > 0 {
		b = from.Where[u.Takes[0].GPU].Pool
	}
	relief, use := p.snap.HotUse(&u, o.Hot), p.snap.MostUse(&u)
	before := p.scorer.Worth(b)
	t := p.begin()
	defer t.rollback()
	if t.release(u.ID) != nil {
		return Move{}, false
	}
	after := p.scorer.Worth(b)
	to := p.elsewhere(sh, func(n *cluster.NodeState) bool { return n != from && o.takes(n) })
	if to == nil {
		return Move{}, false
	}
	m := Move{Why: why, From: u, To: p.placement(&r, sh, to), LostMilliSeconds: u.LostMilliSeconds(now)}
	if m.GainMilli = u.Milli(); why != MovesToEmpty {
		m.GainMilli = p.scorer.Healed(&before, &after) + p.scorer.ModelPrice(sh.Shape, b.Kind) - p.scorer.CostAt(sh.Task, to)
	}
	if why == MovesForHeat {
		m.GainMilli += relief
	}
	return m, m.GainMilli >= o.MinMilli && m.worth(o) > 0 && p.snap.StaysCool(&m.To.Usage, use) && p.withinLimits(&m.To.Usage) == nil
}

// elsewhere is the best pool for a shape on a node that will do; nil: there is none.
func (p *Planner) elsewhere(sh *shape, will func(*cluster.NodeState) bool) *cluster.Pool {
	ix := p.indexOf(sh)
	out := map[int]int32{} // classes that were taken out
	defer func() {
		for id, points := range out {
			ix.Tree.Set(id, points)
		}
	}()
	for {
		id, ok := ix.Pick()
		if !ok {
			return nil
		}
		for _, pool := range ix.List.List[id].Pools {
			if b := p.snap.Pools[pool]; will(b.Node) {
				return b
			}
		}
		out[id] = ix.Tree.Scores()[id]
		ix.Tree.Set(id, score.Worst)
	}
}

// requestOf is a request for what a usage holds, on the same kind of GPU and in
// the same datacenter and pool. Constraints of its job are not known here.
func (p *Planner) requestOf(u *Usage) (Request, bool) {
	n := p.snap.Nodes[u.NodeID]
	r := Request{
		ID: u.ID, Job: u.Job, Namespace: u.Namespace, Queue: u.Queue, Priority: u.Priority,
		CPUMHz: u.CPUMHz, MemoryMiB: u.MemoryMiB, GPUs: len(u.Takes), MinRun: u.MinRun,
		Datacenters: []string{n.Spec.Datacenter}, Pools: []string{n.Spec.Pool},
	}
	if len(u.Takes) == 0 {
		return r, true
	}
	t := u.Takes[0]
	b := n.Where[t.GPU].Pool
	k := &p.snap.Kinds[b.Kind]
	if slices.ContainsFunc(u.Takes, func(o Take) bool {
		return n.Where[o.GPU].Pool != b || cmp.Or(cmp.Compare(o.Milli, t.Milli), cmp.Compare(o.Slices, t.Slices)) != 0
	}) {
		return r, false // uneven: not the answer to one request
	}
	r.Vendor, r.Models, r.Profile, r.Sharing, r.Mode = k.Vendor, []string{k.Model}, k.Profile, k.Sharing, k.Mode
	switch {
	case k.Replicas > 0:
		r.Shared, r.Expected = true, t.Expected
	case t.Milli == cluster.GPUMilli && t.Slices == k.Slices:
		r.Whole = true
	default:
		r.Expected = t.Expected
		r.ShareMilli, r.MemoryMiBPerGPU = min(t.Milli, cluster.GPUMilli-1), t.Slices*k.SliceMiB
	}
	return r, r.Validate() == nil
}
