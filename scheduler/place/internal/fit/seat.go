// SPDX-License-Identifier: MPL-2.0

package fit

import "github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"

// Beside is whom a request may sit with on a GPU whose tasks step aside for each other. Of
// other GPUs it asks nothing.
type Beside uint8

const (
	BesideAny Beside = iota
	// BesideLower is beside tasks that step aside for it at once: their seats have a lower
	// priority, or they do not use the GPU.
	BesideLower
	// BesideNone is alone.
	BesideNone
)

// sits reports whether a request may take a seat on a GPU, as far as it matters who sits
// there.
func (sh *Shape) sits(b *cluster.Pool, index int) bool {
	if sh.Req.Beside == BesideAny {
		return true
	}
	at := b.Positions[index]
	g := &b.Node.Spec.GPUs[at]
	if !g.HasSeats() {
		return true
	}
	for _, u := range b.Node.Holders {
		if u.HoldsPartOf(at) && (sh.Req.Beside == BesideNone || !u.Idle && g.SeatPriorityOf(u.SeatPriority) >= g.SeatPriorityOf(sh.Req.SeatPriority)) {
			return false
		}
	}
	return true
}
