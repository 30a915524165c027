package place

import (
	"cmp"
	"slices"
	"time"
)

// Move is a proposal to take work from where it is to another place.
type Move struct {
	From Usage
	To   Placement
	// GainMilli is the GPU milli that would not be wasted any more.
	GainMilli int64
	// LostMilliSeconds is the work that moving throws away.
	LostMilliSeconds int64
}

// Rebalancing bounds what [Planner.Rebalance] proposes.
type Rebalancing struct {
	Moves    int               // at most so many
	Horizon  time.Duration     // a gain is enjoyed for so long; default one hour
	MinMilli int64             // smallest gain worth a move; default 50
	PerBank  int               // banks looked at per move, those with the most waste; default 16
	CanMove  func(*Usage) bool // nil: all that are not protected
}

// Rebalance proposes moves that pay: over the horizon, the waste that they heal
// is worth more than the work that they lose. The moves are to be made in their
// order; each is chosen with the earlier ones made. The snapshot is left as it
// was.
func (p *Planner) Rebalance(o Rebalancing, now time.Time) []Move {
	p.prepare()
	o = o.defaults()
	t := p.begin()
	defer t.rollback()
	var moves []Move
	moved := map[string]bool{}
	for len(moves) < o.Moves {
		m, ok := p.bestMove(t, o, now, moved)
		if !ok {
			break
		}
		if t.release(m.From.ID) != nil || t.apply(m.To.Usage) != nil {
			break
		}
		moved[m.From.ID] = true
		moves = append(moves, m)
	}
	return moves
}

func (o Rebalancing) defaults() Rebalancing {
	if o.Horizon == 0 {
		o.Horizon = time.Hour
	}
	if o.MinMilli == 0 {
		o.MinMilli = 50
	}
	if o.PerBank == 0 {
		o.PerBank = 16
	}
	return o
}

// bestMove tries every movable usage of the banks with the most waste.
func (p *Planner) bestMove(t *transaction, o Rebalancing, now time.Time, moved map[string]bool) (Move, bool) {
	var best Move
	found := false
	for _, b := range p.wasteful(o.PerBank) {
		for _, u := range slices.Clone(b.node.holders) {
			if moved[u.ID] || u.protected(now) || (o.CanMove != nil && !o.CanMove(u)) {
				continue
			}
			m, ok := p.tryMove(b, *u, o, now)
			if ok && (!found || m.worth(o) > best.worth(o)) {
				best, found = m, true
			}
		}
	}
	return best, found
}

// worth is what is gained over the horizon, less what is lost, in
// milli-seconds.
func (m *Move) worth(o Rebalancing) int64 {
	return m.GainMilli*int64(o.Horizon/time.Second) - m.LostMilliSeconds
}

// wasteful lists the banks with the most expected waste, the most first.
func (p *Planner) wasteful(n int) []*bank {
	var out []*bank
	for _, b := range p.snap.banks {
		if b == nil || b.kind < 0 || len(b.node.holders) == 0 {
			continue
		}
		at := len(out)
		for at > 0 && p.wasteNow(b, p.fine) > p.wasteNow(out[at-1], p.fine) {
			at--
		}
		if at < n {
			out = slices.Insert(out, at, b)
			out = out[:min(n, len(out))]
		}
	}
	return out
}

// tryMove takes a usage away, finds its best other place and works out what
// that gains. The snapshot is left as it was.
func (p *Planner) tryMove(b *bank, u Usage, o Rebalancing, now time.Time) (Move, bool) {
	r, ok := p.requestOf(&u)
	if !ok {
		return Move{}, false
	}
	before := int64(p.wasteNow(b, p.fine))
	t := p.begin()
	defer t.rollback()
	if t.release(u.ID) != nil {
		return Move{}, false
	}
	healed := before - int64(p.wasteNow(b, p.fine))
	sh := p.shapeOf(&r)
	ix := sh.index
	p.sync(ix, sh)
	id, ok := p.pick(ix, sh)
	if !ok {
		return Move{}, false
	}
	to, v := p.bankOf(ix, id), &ix.verdicts[id]
	if to.node == b.node {
		return Move{}, false
	}
	m := Move{From: u, To: p.placement(&r, sh, to), LostMilliSeconds: u.lostMilliSeconds(now)}
	m.GainMilli = healed - p.cost(v.waste, v.after, v, sh)
	return m, m.GainMilli >= o.MinMilli && m.worth(o) > 0 && p.withinLimits(&m.To.Usage) == nil
}

// requestOf is a request for what a usage holds, on the same kind of GPU and in
// the same datacenter and pool. Constraints of its job are not known here: the
// caller checks a move against them, or leaves them to Nomad.
func (p *Planner) requestOf(u *Usage) (Request, bool) {
	n := p.snap.nodes[u.NodeID]
	r := Request{
		ID: u.ID, Job: u.Job, Namespace: u.Namespace, Queue: u.Queue, Priority: u.Priority,
		CPUMHz: u.CPUMHz, MemoryMiB: u.MemoryMiB, GPUs: len(u.Takes), MinRun: u.MinRun,
		Datacenters: []string{n.spec.Datacenter}, Pools: []string{n.spec.Pool},
	}
	if len(u.Takes) == 0 {
		return r, true
	}
	t := u.Takes[0]
	b := n.where[t.GPU].bank
	k := &p.snap.kinds[b.kind]
	if slices.ContainsFunc(u.Takes, func(o Take) bool {
		return n.where[o.GPU].bank != b || cmp.Or(cmp.Compare(o.Milli, t.Milli), cmp.Compare(o.Slices, t.Slices)) != 0
	}) {
		return r, false // uneven: not the answer to one request
	}
	r.Vendor, r.Models, r.Profile, r.Sharing, r.Mode = k.Vendor, []string{k.Model}, k.Profile, k.Sharing, k.Mode
	switch {
	case k.Replicas > 0:
		r.Shared = true
	case t.Milli == gpuMilli && t.Slices == k.Slices:
		r.Whole = true
	default:
		r.ShareMilli, r.MemoryMiBPerGPU = min(t.Milli, gpuMilli-1), t.Slices*k.SliceMiB
	}
	return r, r.Validate() == nil
}
