// SPDX-License-Identifier: MPL-2.0

package place

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
)

// seatNode has GPUs of which some have seats, with priorities up to one.
func seatNode(id string, random *rand.Rand) Node {
	n := Node{ID: id, Name: id, CPUMHz: 64000, MemoryMiB: 262144}
	for i := range 1 + random.IntN(4) {
		g := placetest.GPU(fmt.Sprintf("%s-gpu%d", id, i), "A100")
		g.Mode, g.Sharing, g.Slices, g.SliceMiB, g.Replicas = gpu.ModeShared, gpu.SharingTimeslice, 0, 0, 3
		if random.IntN(4) > 0 {
			g.Sharing, g.SeatPriority = gpu.SharingSuspend, 20+random.IntN(80)
		}
		n.GPUs = append(n.GPUs, g)
	}
	return n
}

// Whatever sits where, and whoever comes and goes: a request is placed beside whom it may sit
// with, and finds no room only where there is no such seat.
func TestSeatsAreAsAFreshLookFindsThem(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		nodes := map[string]Node{}
		var list []Node
		for i := range 1 + random.IntN(4) {
			n := seatNode(fmt.Sprintf("n%d", i), random)
			nodes[n.ID] = n
			list = append(list, n)
		}
		p := testPlanner(t, list...)
		held := map[string]Usage{}
		for step := range 60 {
			r := Request{ID: fmt.Sprintf("r%d", step), CPUMHz: 10, MemoryMiB: 10, GPUs: 1, Shared: true, SeatPriority: random.IntN(101), Beside: Beside(random.IntN(3))}
			free := func(g *GPU, node string, at int) bool {
				taken, good := int64(0), true
				for _, u := range held {
					if u.NodeID != node || u.Takes[0].GPU != at {
						continue
					}
					taken++
					own, other := min(max(r.SeatPriority, 0), g.SeatPriority), min(u.SeatPriority, g.SeatPriority)
					if r.SeatPriority == 0 {
						own = min(50, g.SeatPriority)
					}
					if u.SeatPriority == 0 {
						other = min(50, g.SeatPriority)
					}
					good = good && (r.Beside == BesideAny || r.Beside == BesideLower && other < own || g.Sharing != gpu.SharingSuspend)
				}
				return good && taken < g.Replicas
			}
			any := false
			for id, n := range nodes {
				for at := range n.GPUs {
					any = any || free(&n.GPUs[at], id, at)
				}
			}
			pl, err := p.Place(&r)
			switch {
			case err == nil:
				n := nodes[pl.NodeID]
				if at := pl.Usage.Takes[0].GPU; !free(&n.GPUs[at], pl.NodeID, at) {
					t.Fatalf("seed %d, step %d: %+v may not sit on %s/%d", seed, step, r, pl.NodeID, at)
				}
				if err := p.snap.Apply(pl.Usage); err != nil {
					t.Fatal(err)
				}
				held[r.ID] = pl.Usage
			case !errors.Is(err, ErrNoRoom) || any:
				t.Fatalf("seed %d, step %d: %+v: %v, and there is a seat: %v", seed, step, r, err, any)
			}
			for id := range held {
				if random.IntN(12) == 0 {
					if _, err := p.snap.Release(id); err != nil {
						t.Fatal(err)
					}
					delete(held, id)
				}
			}
		}
	}
}
