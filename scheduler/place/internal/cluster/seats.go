// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"cmp"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// HasSeats reports whether tasks step aside for each other on any GPU.
func (s *Snapshot) HasSeats() bool { return len(s.seatBounds) > 0 }

// LowestSeatBound is the highest priority that a seat may have on every GPU that has seats; 0
// where none has.
func (s *Snapshot) LowestSeatBound() int {
	lowest := 0
	for bound := range s.seatBounds {
		if lowest == 0 || bound < lowest {
			lowest = bound
		}
	}
	return lowest
}

// countSeats takes the GPUs of a node with seats into account (sign 1) or out of it (-1).
func (s *Snapshot) countSeats(n *Node, sign int) {
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.HasSeats() {
			if s.seatBounds[g.SeatPriority] += sign; s.seatBounds[g.SeatPriority] == 0 {
				delete(s.seatBounds, g.SeatPriority)
			}
		}
	}
}

// SitsOn lists the usages that hold a seat on a GPU of a node.
func (s *Snapshot) SitsOn(node string, index int) []Usage {
	n := s.Nodes[node]
	if n == nil || index >= len(n.Spec.GPUs) || !n.Spec.GPUs[index].HasSeats() {
		return nil
	}
	var list []Usage
	for _, u := range n.Holders {
		if u.HoldsPartOf(index) {
			list = append(list, *u)
		}
	}
	return list
}

// HoldsPartOf reports whether the usage holds a part of a GPU, by its place in Node.GPUs.
func (u *Usage) HoldsPartOf(index int) bool {
	for _, t := range u.Takes {
		if t.GPU == index {
			return true
		}
	}
	return false
}

// SeatPriorityOf is the priority that a seat has on the GPU where so much is wanted; 0 wants
// the normal one.
func (g *GPU) SeatPriorityOf(wanted int) int {
	return min(cmp.Or(wanted, gpu.NormalSeatPriority), g.SeatPriority)
}
