// SPDX-License-Identifier: MPL-2.0

package score

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// wasted is an estimate of waste and the price of the room for several that goes with it, of
// a placement that leaves idle GPUs idle, in milli.
func (sc *Scorer) wasted(v *Estimate, waste int32, idle uint8) int64 {
	if v.kind < 0 {
		return int64(waste)
	}
	return int64(waste) + sc.slots(v.before, v.roomBefore) - sc.slots(idle, v.roomAfter)
}

// charges are the prices of a placement that do not depend on an estimate, in milli.
func (sc *Scorer) charges(v *Estimate, sh *fit.Shape) int64 {
	return sc.Prices.Spare*int64(v.left) + sc.ModelPrice(sh, v.kind)
}

// slots is the worth of a pool to tasks of several GPUs, by its idle GPUs and by the CPU that is
// room for as many.
func (sc *Scorer) slots(idle, room uint8) int64 {
	if sc.Prices.Careful {
		idle = min(idle, room)
	}
	return sc.Prices.Slots[idle]
}

// ModelPrice is the price of what a shape takes of a kind of GPU, in milli.
func (sc *Scorer) ModelPrice(sh *fit.Shape, kind int32) int64 {
	if sh.Req.GPUs == 0 || kind < 0 {
		return 0
	}
	return sc.Prices.Model[kind] * int64(sh.Need(sc.snap, kind).Share) * int64(sh.Req.GPUs) / 1000
}

// Left is what a node has to spare after a placement, in thousandths of the largest.
func (sc *Scorer) Left(sh *fit.Shape, b *cluster.Pool) int16 {
	free := b.Free
	if sh.Req.GPUs > 0 {
		free -= int64(sh.Need(sc.snap, b.Kind).Share) * int64(sh.Req.GPUs)
	}
	return forecast.Left(b.Node.CPU-sh.Req.CPUMHz, free, sc.largest)
}

// breaks is what placing a shape on a pool that it fits takes away of room for
// several GPUs, so that idle GPUs stay idle.
func (sc *Scorer) breaks(sh *fit.Shape, b *cluster.Pool, idle int32) forecast.PlaceCounts {
	if b.Kind < 0 {
		return forecast.PlaceCounts{}
	}
	before, room := sc.roomNow(b), b.Supply()
	room.Idle, room.Residents = idle, room.Residents+1
	room.CPU -= sh.Req.CPUMHz
	room.Memory -= sh.Req.MemoryMiB
	after := sc.Places.Counts(&room)
	return before.Minus(&after)
}

// classRoom is the room for several GPUs on each of the pools of a class of this birth.
type classRoom struct {
	born   int64
	counts forecast.PlaceCounts
}

// roomNow is the room for several GPUs that a pool has as it is, remembered for its class
// until the demand changes.
func (sc *Scorer) roomNow(b *cluster.Pool) *forecast.PlaceCounts {
	for int(b.Class) >= len(sc.rooms) {
		sc.rooms = append(sc.rooms, classRoom{born: -1})
	}
	c := &sc.rooms[b.Class]
	if born := sc.snap.States.List[b.Class].Born; c.born != born {
		room := b.Supply()
		*c = classRoom{born, sc.Places.Counts(&room)}
	}
	return &c.counts
}

// roomCPU is which part of its GPUs' share of the node's CPU room for several needs to count
// under careful prices, in thousandths: large tasks that are not known yet may need it.
const roomCPU = 900

// roomFor is how many GPUs of a pool so much CPU is enough for under careful prices.
func roomFor(b *cluster.Pool, cpu int64) uint8 {
	all := int64(len(b.GPUs))
	if b.Node.Spec.CPUMHz <= 0 {
		return uint8(all)
	}
	return uint8(min(all, max(0, cpu)*all*1000/(b.Node.Spec.CPUMHz*roomCPU)))
}
