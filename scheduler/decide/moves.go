package decide

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Move is running work that would pay to be elsewhere.
type Move struct {
	Promise  // of its new place
	AllocID  string
	From, To string // node IDs
	// Text says what is won.
	Text string
}

// Moves proposes what to move, at most so many allocs, none while anything
// waits: then room is better given to what waits.
func (b *Book) Moves(most int) []Move {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ready() != nil || len(b.flights) > 0 || len(b.pending()) > 0 {
		return nil
	}
	found := b.plan.Rebalance(place.Rebalancing{Moves: most, CanMove: b.movable}, b.now())
	var moves []Move
	moving := map[string]bool{} // groups: one alloc of each at a time
	for _, m := range found {
		a := b.allocs[m.From.ID]
		if a == nil || m.To.NodeID == m.From.NodeID || moving[a.Key().String()+"/"+a.Group] {
			continue // within a node, the choice of the GPU is Nomad's
		}
		moving[a.Key().String()+"/"+a.Group] = true
		u := m.To.Usage
		u.Queue, u.Priority = m.From.Queue, m.From.Priority
		moves = append(moves, Move{
			Promise: Promise{a.Key(), a.Group, u}, AllocID: a.ID, From: m.From.NodeID, To: m.To.NodeID,
			Text: fmt.Sprintf("alloc %.8s of job %s moves from node %s to %s, which saves %d milli of GPU from going to waste",
				a.ID, a.Key(), b.nodes[m.From.NodeID].Plan.Name, b.nodes[m.To.NodeID].Plan.Name, m.GainMilli),
		})
	}
	return moves
}

// movable reports whether an alloc may be moved: one that came through the
// service, has run long enough, and has no sibling on its node, which would
// have to go too. As with a drain, its group's migrate block allows it and all of
// the group run and are healthy: none is away for another move, an update or a
// drain. A batch job has no such block, and nobody watches its health.
func (b *Book) movable(u *place.Usage) bool {
	a := b.allocs[u.ID]
	if a == nil || !b.evictable(a) {
		return false
	}
	if r := b.records[a.Key()]; r == nil || len(r.Groups[a.Group].Excluded) > 0 {
		return false
	}
	j, running := b.jobs[a.Key()], 0
	for _, sibling := range b.byJob[a.Key()] {
		switch {
		case sibling.Group != a.Group:
			continue
		case sibling.Stopping || sibling.Status != "running", j.Type == "service" && !sibling.Healthy:
			return false
		case sibling.ID != a.ID && sibling.NodeID == a.NodeID:
			return false
		}
		running++
	}
	g := j.Group(a.Group)
	return g != nil && !g.Stays && running == g.Count
}
