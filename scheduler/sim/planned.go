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
	// arrivals, at most so many moves per hundred tasks placed. Moved work is
	// not in the Spots of a [Result], which say where tasks went first.
	MovePercent int
	Moves       int // made so far

	at     map[string]int // node ID to position
	count  int
	placed int
}

// rebalanceEvery is how many arrivals there are between two looks for moves.
const rebalanceEvery = 50

// NewPlanned plans for the nodes of a trace; ties go to the earlier node.
// History becomes the planner's prior demand; without any it keeps its own.
func NewPlanned(nodes []Node, history []Task, policy place.Policy, w place.Weights) (*Planned, error) {
	p := &Planned{Snapshot: place.NewSnapshot(), at: map[string]int{}}
	for i, n := range nodes {
		if err := p.Snapshot.AddNode(placeNode(n)); err != nil {
			return nil, fmt.Errorf("plan for trace: %w", err)
		}
		p.at[n.Name] = i
	}
	p.Planner = place.NewPlanner(p.Snapshot, policy, w)
	if len(history) > 0 {
		prior := make([]place.Request, len(history))
		for i := range history {
			prior[i] = RequestOf(&history[i], "")
		}
		p.Planner.Learn(prior)
	}
	return p, nil
}

// placeNode translates a node. Traces know GPU memory only as part of the
// share, so a GPU is 1000 slices of one thousandth.
func placeNode(n Node) place.Node {
	out := place.Node{ID: n.Name, Name: n.Name, CPUMHz: n.CPUMilli, MemoryMiB: n.MemoryMiB}
	for i := range n.GPUs {
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
	}
	if t.GPUs > 0 && t.GPUMilli == gpuMilli {
		r.Whole = true
	} else {
		r.ShareMilli = t.GPUMilli
	}
	return r
}

// Place implements Placer.
func (p *Planned) Place(t *Task) (Spot, bool) {
	r := RequestOf(t, strconv.Itoa(p.count))
	p.count++
	if p.MovePercent > 0 && p.count%rebalanceEvery == 0 {
		p.rebalance()
	}
	p.Planner.Arrive(&r)
	pl, err := p.Planner.Place(&r)
	if err != nil {
		return Spot{}, false
	}
	if err := p.Snapshot.Apply(pl.Usage); err != nil {
		return Spot{}, false
	}
	p.placed++
	spot := Spot{Node: p.at[pl.NodeID]}
	for _, t := range pl.Usage.Takes {
		spot.GPUs = append(spot.GPUs, t.GPU)
	}
	return spot, true
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
