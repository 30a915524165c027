// SPDX-License-Identifier: MPL-2.0

package place

import (
	"iter"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// Headroom is room that is kept for large tasks while smaller ones can wait for other room.
type Headroom struct {
	GPUs   int   // that a large task takes of one node
	Places int64 // how many such tasks there is room for now
}

// Large tasks take at least half of the GPUs of the usual node. Nodes have as many as the
// largest of them takes.
const leastLarge, mostLarge = 4, 8

// mostKept bounds the kept room, whatever comes, to a quarter of the GPUs, or one place.
const mostKept = 4

// ArriveAt is [Planner.Arrive] for a request with a known time of arrival. How often
// large requests arrive says how much room is kept for them.
func (p *Planner) ArriveAt(r *Request, at time.Time) {
	p.NoteArrival(r, at)
	p.Arrive(r)
}

// NoteArrival counts a request for the room that is kept, and not as demand.
func (p *Planner) NoteArrival(r *Request, at time.Time) {
	p.arrived.Note(r.GPUs, r.Whole, r.Priority, at)
}

// Keeps reports whether a placement would take room that is kept for larger tasks
// ([forecast.Headroom]) from a request that has waited for so long: the request should wait
// for other room, and ask again. None waits longer than [Weights.HeadroomWait], or for tasks of
// a lower priority. Only BALANCED keeps room, and only where tasks end.
func (p *Planner) Keeps(r *Request, u *Usage, waited time.Duration) (Headroom, bool) {
	if !p.keepsFrom(r, waited) {
		return Headroom{}, false
	}
	for _, b := range p.snap.Nodes[u.NodeID].Pools {
		if b.Kind < 0 || b.Idle < leastLarge {
			continue
		}
		now, after := b.Supply(), after(b, u)
		for gpus := max(leastLarge, len(u.Takes)+1); gpus <= int(b.Idle); gpus++ {
			large, known := p.scorer.Places.Large(b.Kind, int64(gpus))
			if !known || large.On(&after) == large.On(&now) {
				continue
			}
			if h, keeps := p.headroom(&large, gpus, len(u.Takes), r.Priority); keeps {
				return h, true
			}
		}
	}
	return Headroom{}, false
}

// KeptNodes are the nodes with room that Keeps would have a request wait for others to take.
func (p *Planner) KeptNodes(r *Request, waited time.Duration) map[string]bool {
	nodes := map[string]bool{}
	for large := range p.kept(r, waited) {
		for _, b := range p.snap.Pools {
			if b == nil || b.Kind != large.kind {
				continue
			}
			if now := b.Supply(); large.places.On(&now) > 0 {
				nodes[b.Node.Spec.ID] = true
			}
		}
	}
	return nodes
}

// keptKind is room on GPUs of a kind that is kept for large tasks.
type keptKind struct {
	kind   int32
	places forecast.LargePlaces
}

// kept is the room kept from a request that has waited for so long, the smallest tasks first.
func (p *Planner) kept(r *Request, waited time.Duration) iter.Seq[keptKind] {
	return func(yield func(keptKind) bool) {
		if !p.keepsFrom(r, waited) {
			return
		}
		for gpus := max(leastLarge, r.GPUs+1); gpus <= mostLarge; gpus++ {
			for kind := range int32(len(p.snap.Kinds)) {
				places, known := p.scorer.Places.Large(kind, int64(gpus))
				if !known {
					continue
				}
				if _, keeps := p.headroom(&places, gpus, r.GPUs, r.Priority); keeps && !yield(keptKind{kind, places}) {
					return
				}
			}
		}
	}
}

// keepsFrom reports whether room is kept at all from a request that has waited for so long.
func (p *Planner) keepsFrom(r *Request, waited time.Duration) bool {
	p.prepare()
	return waited < p.weights.HeadroomWait && p.scorer.Turnover.Lives && p.shapeOf(r).Req.Policy == fit.PolicyBalanced
}

// headroom is the room for large tasks of that number of GPUs, and whether no more of it is left
// than is kept from a task of n GPUs with this priority.
func (p *Planner) headroom(large *forecast.LargePlaces, gpus, n, priority int) (Headroom, bool) {
	rate := large.Part * p.arrived.PerSecond(gpus, priority)
	kept := forecast.Headroom(rate, float64(p.weights.HeadroomSigmaMilli)/1000, p.weights.HeadroomWait, n, gpus)
	if kept == 0 {
		return Headroom{}, false
	}
	var all int64 // GPUs that such tasks may run on
	for kind := range p.snap.Kinds {
		if large.May(int32(kind)) {
			all += p.snap.Stock[kind].GPUs
		}
	}
	kept = min(kept, max(1, float64(all/mostKept)/float64(gpus)))
	h := Headroom{GPUs: gpus}
	for _, b := range p.snap.Pools {
		if b == nil || b.Kind < 0 || b.Idle < leastLarge {
			continue
		}
		now := b.Supply()
		if h.Places += large.On(&now); float64(h.Places) > kept {
			return h, false
		}
	}
	return h, true
}

// after is what a pool has once a usage is on its node.
func after(b *cluster.Pool, u *Usage) forecast.Pool {
	left := b.Supply()
	left.CPU -= u.CPUMHz
	left.Memory -= u.MemoryMiB
	for _, t := range u.Takes {
		if at := b.Node.Where[t.GPU]; at.Pool == b && b.GPUs[at.Index].Share == cluster.GPUMilli {
			left.Idle--
		}
	}
	return left
}
