// SPDX-License-Identifier: MPL-2.0

package blocks

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// IsSeat reports whether tasks step aside for each other on a GPU.
func IsSeat(g *place.GPU) bool { return g.Mode == gpu.ModeShared && g.Sharing == gpu.SharingSuspend }

// AsSeat turns a request into one for a seat, or says why a seat does not serve it.
func AsSeat(r *place.Request, t *admit.TaskAsk) string {
	switch {
	case t.Driver != gpu.DriverName:
		return fmt.Sprintf("a task with a seat runs with driver %q, not %q", gpu.DriverName, t.Driver)
	case t.Request.Kind == gpu.KindCount && t.Request.Count != 1:
		return fmt.Sprintf("%s = %q: a task with a seat can use one GPU; write 1, or GPU memory such as 20G", admit.KeyGPU, t.Request)
	case t.Request.Milli > 0 || t.LimitMilli > 0:
		return fmt.Sprintf("%s = %q: a seat promises no share of compute; write 1, or GPU memory such as 20G", admit.KeyGPU, t.Request)
	case r.Profile != "":
		return "a MIG instance has no seats"
	}
	r.GPUs, r.Whole, r.Shared, r.Cover = 1, false, true, false
	r.Sharing, r.Mode, r.MinMemoryMiB, r.MemoryMiBPerGPU = gpu.SharingSuspend, gpu.ModeShared, max(r.MinMemoryMiB, t.Request.MemoryMiB), 0
	return ""
}

// seatMemory is the GPU memory that a task with a seat is said to take; 0: it may take all.
// What comes near to all of it is not said: the driver keeps a part for itself.
func seatMemory(asked int64, g *place.GPU) int64 {
	if asked > g.MemoryMiB*9/10 {
		return 0
	}
	return asked
}

// seatConditions keep a block on GPUs with seats, and of the memory that was asked for.
func seatConditions(r *place.Request) []admit.Constraint {
	list := []admit.Constraint{{LTarget: "${device.attr.sharing}", RTarget: string(gpu.SharingSuspend), Operand: "="}}
	if r.MinMemoryMiB > 0 {
		// Cards tell a little less than the size that they are sold as.
		list = append(list, admit.Constraint{LTarget: "${device.attr.memory}", RTarget: strconv.FormatInt((r.MinMemoryMiB-1)/1024*1024+1, 10) + " MiB", Operand: ">="})
	}
	return list
}

// SeatPriority is the priority of a request's seat: the job's, as far as its queue and
// the nodes allow it, or the lowest where the queue borrows it. So a borrowed seat steps
// aside first.
func SeatPriority(tx *state.Tx, r *place.Request) int {
	if tx.Planner().Borrows(r) {
		return gpu.MinSeatPriority
	}
	return max(gpu.MinSeatPriority, min(r.Priority, tx.Planner().Snapshot().LowestSeatBound()))
}

// writtenSeatPriority is what the author wrote for a task with device blocks, as it is
// registered; 0: nothing that is known.
func writtenSeatPriority(tx *state.Tx, a *admit.Ask, task int) int {
	if j := tx.Cluster.Job(nomad.JobKey{Namespace: a.Namespace, ID: a.JobID}); j != nil {
		if g := j.Group(a.Group); g != nil {
			if t := g.Task(a.Tasks[task].Task); t != nil {
				return t.SeatPriority
			}
		}
	}
	return 0
}

// seated places a request, where it is for a seat on a GPU that is empty, or else beside
// tasks that step aside for it, or else beside any.
func (on Scratch) seated(r *place.Request) (place.Placement, error) {
	if !r.Shared || r.Beside != place.BesideAny || !on.plan.Snapshot().HasSeats() {
		return on.plan.Place(r)
	}
	return PlaceBeside(on.plan, r, place.BesideNone, place.BesideLower, place.BesideAny)
}

// PlaceBeside places a request by the first rule under which there is room.
func PlaceBeside(plan *place.Planner, r *place.Request, rules ...place.Beside) (pl place.Placement, err error) {
	for _, beside := range rules {
		one := *r
		one.Beside = beside
		if pl, err = plan.Place(&one); err == nil || !errors.Is(err, place.ErrNoRoom) {
			return pl, err
		}
	}
	return pl, err
}
