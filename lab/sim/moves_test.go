// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"maps"
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

func TestMovesAreBounded(t *testing.T) {
	w := smallWorkload()
	p, err := NewPlanned(w.Nodes, w.History, place.PolicyPack, quickWeights())
	if err != nil {
		t.Fatal(err)
	}
	p.MovePercent = 2
	r := Replay(w.Nodes, w.Arrivals, p, frozen)
	if p.Moves == 0 || p.Moves > r.Placed*2/100 {
		t.Errorf("%d moves for %d tasks placed, want some and at most 2%%", p.Moves, r.Placed)
	}
}

// What moving work could gain on the published traces, were it free: whatever
// is admitted is packed anew at every arrival, as if the cluster were one large
// node. What is still refused then, moves cannot make room for.
func TestUnlimitedMoves(t *testing.T) {
	w := openb(t, "default-42")
	gpus := int(Capacity(w.Nodes) / gpuMilli)
	packed := packing{shares: map[int64]int{}}
	var c curve
	var arrived, used int64
	for i := range w.Arrivals {
		k := &w.Arrivals[i]
		arrived += k.Demand()
		if packed.add(k, gpus) {
			used += k.Demand()
		}
		c.add(arrived, used, int64(gpus)*gpuMilli)
	}
	r := Result{Curve: c.points()}
	t.Logf("with unlimited moves: %.2f%% at 100%%, %.2f%% at 130%%", r.At(100), r.At(130))
	if r.At(130) > 96.5 {
		t.Errorf("%.2f%% at 130%%: moves could gain more than docs/design/placement-study.md says", r.At(130))
	}
}

// packing is a multiset of tasks on interchangeable GPUs.
type packing struct {
	whole  int
	shares map[int64]int // number of GPU shares of each size
}

// add takes a task when all that is there fits so many GPUs with it.
func (p *packing) add(k *Task, gpus int) bool {
	if k.GPUMilli == gpuMilli {
		if p.whole+k.GPUs+p.bins() > gpus {
			return false
		}
		p.whole += k.GPUs
		return true
	}
	p.shares[k.GPUMilli] += k.GPUs
	if p.whole+p.bins() <= gpus {
		return true
	}
	p.shares[k.GPUMilli] -= k.GPUs
	return false
}

// bins is the number of GPUs that the shares take, best fit in descending size.
func (p *packing) bins() int {
	left := map[int64]int{} // GPUs by what they have left
	bins := 0
	for _, share := range slices.Backward(slices.Sorted(maps.Keys(p.shares))) {
		for n := p.shares[share]; n > 0; n-- {
			best := int64(gpuMilli)
			for room, count := range left {
				if count > 0 && room >= share {
					best = min(best, room)
				}
			}
			if best == gpuMilli {
				bins++
			} else {
				left[best]--
			}
			left[best-share]++
		}
	}
	return bins
}
