// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// oneSeat refuses tasks with a seat on one GPU and with another GPU: they could wait for
// each other.
func oneSeat(d gpu.ReservedDevice, state gpu.GPUState, devices int) error {
	if state.Sharing != gpu.SharingSuspend || d.Whole() {
		return nil
	}
	if state.Seats == nil {
		return &NotReadyError{d.UUID, "the device plugin does not say how its tasks step aside for each other"}
	}
	if devices > 1 {
		return fmt.Errorf("task holds a seat on GPU %s and %d more GPUs: a task with a seat can use that one GPU only; ask for one GPU, or for whole ones", d.UUID, devices-1)
	}
	return nil
}

// seatOf adds to a holding what its seat is: how much of the host's memory it may need,
// and who goes before it.
func seatOf(h gpu.Holding, state gpu.GPUState, want taskconfig.GPURequest) (gpu.Holding, error) {
	if state.Sharing != gpu.SharingSuspend || state.Seats == nil || h.Mode != gpu.ModeShared {
		return h, nil
	}
	h.SeatMiB = h.MemoryMiB
	if h.SeatMiB == 0 {
		h.SeatMiB = state.MemoryMiB
	}
	// The watchdog lets a task have a little more than it says.
	h.SeatMiB += max(64, h.SeatMiB/50)
	switch {
	case want.SeatPriority != 0:
		h.SeatPriority = want.SeatPriority
	case want.BelowNormal:
		h.SeatPriority = min(gpu.BelowNormalSeatPriority, state.Seats.MaxPriority)
	default:
		h.SeatPriority = min(gpu.NormalSeatPriority, state.Seats.MaxPriority)
	}
	if h.SeatPriority > state.Seats.MaxPriority {
		return h, fmt.Errorf("gpu.priority: %d is not valid (%d to %d: this node's operator allows no more, suspend.max_priority)", h.SeatPriority, gpu.MinSeatPriority, state.Seats.MaxPriority)
	}
	return h, nil
}
