// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Planned is the product's planner as a Placer.
type Planned struct {
	Snapshot *place.Snapshot
	Planner  *place.Planner
	// MovePercent lets the planner move work: after every rebalanceEvery
	// arrivals, at most this number of moves per hundred tasks placed. Moved work is
	// not in the Spots of a [Result], which say where tasks went first.
	MovePercent int
	Moves       int // made so far

	names  []string           // of nodes
	at     map[string]int     // node ID to position
	cut    map[string]*Layout // models whose GPUs are cut
	waits  bool               // tasks may wait for other room than the room kept for large ones
	ids    map[*Task]string
	ways   []place.Request // scratch
	count  int
	placed int
}

// rebalanceEvery is how many arrivals there are between two looks for moves.
const rebalanceEvery = 50

// NewPlanned plans for the nodes of a trace; ties go to the earlier node.
// History becomes the planner's prior demand; without any it keeps its own.
func NewPlanned(nodes []Node, history []Task, policy place.Policy, w place.Weights) (*Planned, error) {
	p := &Planned{Snapshot: place.NewSnapshot(), at: map[string]int{}, ids: map[*Task]string{}, cut: map[string]*Layout{}}
	for i, n := range nodes {
		if err := p.Snapshot.AddNode(placeNode(n)); err != nil {
			return nil, fmt.Errorf("plan for trace: %w", err)
		}
		p.names, p.at[n.Name] = append(p.names, n.Name), i
		if n.Layout != nil {
			p.cut[n.Model] = n.Layout
		}
	}
	p.Planner = place.NewPlanner(p.Snapshot, policy, w)
	if len(history) > 0 {
		prior := make([]place.Request, len(history))
		for i := range history {
			prior[i] = p.requests(&history[i], "")[0]
		}
		p.Planner.Learn(prior)
	}
	return p, nil
}

// placeNode translates a node. Traces know GPU memory only as part of the
// share, so a GPU is 1000 slices of one thousandth; of one that is cut, the instances.
func placeNode(n Node) place.Node {
	out := place.Node{ID: n.Name, Name: n.Name, CPUMHz: n.CPUMilli, MemoryMiB: n.MemoryMiB}
	for i := range n.GPUs {
		if n.Layout != nil {
			for k, in := range *n.Layout {
				out.GPUs = append(out.GPUs, place.GPU{
					ID: fmt.Sprintf("%s/%d/%d", n.Name, i, k), Model: n.Model, Type: n.Model, Mode: gpu.ModeWhole, Profile: in.Profile,
					MemoryMiB: in.MemoryMilli, MeasuredMilli: place.Unmeasured, MeasuredMemoryMiB: place.Unmeasured,
				})
			}
			continue
		}
		out.GPUs = append(out.GPUs, place.GPU{
			ID: n.Name + "/" + strconv.Itoa(i), Model: n.Model, Type: n.Model, Mode: gpu.ModeSlice,
			MemoryMiB: gpuMilli, SliceMiB: 1, Slices: gpuMilli,
			MeasuredMilli: place.Unmeasured, MeasuredMemoryMiB: place.Unmeasured,
		})
	}
	return out
}

// RequestOf translates a task; one milli of CPU counts as one MHz.
func RequestOf(t *Task, id string) place.Request {
	r := place.Request{
		ID: id, Job: t.Name, Queue: t.Queue, Priority: t.Priority,
		CPUMHz: t.CPUMilli, MemoryMiB: t.MemoryMiB, GPUs: t.GPUs, Models: t.Models,
		MinRun: time.Duration(t.MinRunSeconds) * time.Second,
	}
	switch {
	case t.GPUs > 0 && t.GPUMilli == gpuMilli:
		r.Whole = true
	case t.memoryMilli() != t.GPUMilli:
		r.ShareMilli, r.MemoryMiBPerGPU = t.GPUMilli, t.GPUMemoryMilli // placeNode: a MiB is a milli
	default:
		r.ShareMilli = t.GPUMilli
	}
	return r
}

// Arrive implements Placer.
func (p *Planned) Arrive(t *Task, now float64) {
	p.count++
	if p.MovePercent > 0 && p.count%rebalanceEvery == 0 {
		p.rebalance()
	}
	p.ids[t] = strconv.Itoa(p.count - 1)
	p.Planner.ArriveAt(&p.requests(t, p.ids[t])[0], clock(now))
}

// requests are the ways to place a task, in the order in which they are tried: on MIG
// instances that are enough for it, so that other GPUs stay free for what needs more, then as it asks.
// They are valid until the next call.
func (p *Planned) requests(t *Task, id string) []place.Request {
	r := RequestOf(t, id)
	p.ways = append(p.ways[:0], instances(p.cut, t, r)...)
	p.ways = append(p.ways, r)
	return p.ways
}

// Place implements Placer.
func (p *Planned) Place(t *Task, now float64) (Spot, bool) {
	ways := p.requests(t, p.ids[t])
	for i := range ways {
		pl, err := p.Planner.Place(&ways[i])
		if err != nil {
			continue
		}
		if p.waits {
			if _, keeps := p.Planner.Keeps(&ways[i], &pl.Usage, clock(now).Sub(clock(t.ArriveSecond))); keeps {
				continue
			}
		}
		spot, err := p.book(t, pl.Usage, now)
		return spot, err == nil
	}
	return Spot{}, false
}

// book lets a task start as planned.
func (p *Planned) book(t *Task, u place.Usage, now float64) (Spot, error) {
	u.Start, u.Ends = clock(now), true
	if err := p.Snapshot.Apply(u); err != nil {
		return Spot{}, err
	}
	p.placed++
	p.Planner.Started()
	return spotOf(p.at[u.NodeID], &u), nil
}

// spotOf is where a usage is, on the node at a position.
func spotOf(at int, u *place.Usage) Spot {
	spot := Spot{Node: at}
	for _, t := range u.Takes {
		spot.GPUs = append(spot.GPUs, t.GPU)
	}
	return spot
}

// End implements Placer.
func (p *Planned) End(t *Task, _ Spot, _ float64) {
	p.evict(t)
	p.Planner.Ended()
	delete(p.ids, t)
}

// evict frees what a task holds that will come again.
func (p *Planned) evict(t *Task) {
	_, _ = p.Snapshot.Release(p.ids[t]) // it was booked under this ID
}

// mark books whether the work of a task may be evicted.
func (p *Planned) mark(t *Task, pinned, spent bool) {
	u, err := p.Snapshot.Release(p.ids[t])
	if err != nil {
		return // it has ended
	}
	u.Pinned, u.Spent = pinned, spent
	p.Snapshot.Restore(u)
}

// rebalance makes the moves that the planner proposes, as many as are allowed.
func (p *Planned) rebalance() {
	allowed := p.placed*p.MovePercent/100 - p.Moves
	for _, m := range p.Planner.Rebalance(place.Rebalancing{Moves: allowed, MinMilli: 20}, time.Time{}) {
		if _, err := p.Snapshot.Release(m.From.ID); err != nil {
			return
		}
		if err := p.Snapshot.Apply(m.To.Usage); err != nil {
			return
		}
		p.Moves++
	}
}
