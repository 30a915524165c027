// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"fmt"
	"maps"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// Resize is the share that a task on slices of one device has when it changes its request.
// Counted is its share at the start: its guarantee is what the cluster has counted, and
// the most. CeilingMilli is the operator's for the limit, 0 where it is not known.
func Resize(now, counted gpu.Holding, ceilingMilli int64, state gpu.GPUState, want gpu.SelfResize) (gpu.Holding, error) {
	if now.Mode != gpu.ModeSlice || len(now.Slices) == state.Slices {
		return now, fmt.Errorf("resize: GPU %s cannot be resized (the task must hold a part of its slices)", now.UUID)
	}
	if now.Partition != nil && (want.ComputeMilli != nil || want.LimitMilli != nil) {
		return now, fmt.Errorf("resize: compute and limit cannot be changed on GPU %s, where a task's multiprocessors are its own from its start (mps { static_partitioning })", now.UUID)
	}
	if want.ComputeMilli != nil {
		now.GuaranteeMilli = *want.ComputeMilli
		if now.GuaranteeMilli < 1 || now.GuaranteeMilli > counted.GuaranteeMilli {
			return now, fmt.Errorf("resize: compute: %s is not valid on GPU %s (0.001 to %s, which the task had at its start and the cluster has counted)",
				gpu.FormatMilli(now.GuaranteeMilli), now.UUID, gpu.FormatMilli(counted.GuaranteeMilli))
		}
	}
	if err := resizeLimit(&now, counted, ceilingMilli, state, want); err != nil {
		return now, err
	}
	if want.MemoryLimitMiB == nil {
		return now, nil
	}
	limit := *want.MemoryLimitMiB
	if limit < 1 {
		return now, fmt.Errorf("resize: memory_limit: %d MiB is not valid on GPU %s (at least %s, the task's own)", limit, now.UUID, gpu.FormatMemory(now.MemoryMiB))
	}
	var err error
	now.MemoryLimitMiB, err = memoryBurst(gpu.ReservedDevice{UUID: now.UUID, Mode: now.Mode, Slices: now.Slices, Of: state.Slices}, state, now.MemoryMiB, taskconfig.GPURequest{MemoryLimitMiB: limit})
	if err != nil {
		return now, fmt.Errorf("resize: %w", err)
	}
	return now, nil
}

// resizeLimit changes the limit of compute, and holds it to the guarantee.
func resizeLimit(now *gpu.Holding, counted gpu.Holding, ceilingMilli int64, state gpu.GPUState, want gpu.SelfResize) error {
	limited := state.Sharing == gpu.SharingMPS // HAMi-core keeps the limits of a task's first program
	most := max(ceilingMilli, counted.LimitMilli)
	switch {
	case want.LimitMilli == nil && (now.LimitMilli == 0 || now.LimitMilli >= now.GuaranteeMilli):
		return nil
	case want.LimitMilli == nil:
		return fmt.Errorf("resize: compute: %s is above the limit of %s on GPU %s; write limit too", gpu.FormatMilli(now.GuaranteeMilli), gpu.FormatMilli(now.LimitMilli), now.UUID)
	case !limited:
		return fmt.Errorf("resize: limit: %s cannot be held on GPU %s, whose sharing is %s", gpu.FormatMilli(*want.LimitMilli), now.UUID, state.Sharing)
	case *want.LimitMilli < max(1, now.GuaranteeMilli) || *want.LimitMilli > most:
		return fmt.Errorf("resize: limit: %s is not valid on GPU %s (%s, the guarantee, to %s, which this node's operator allows)",
			gpu.FormatMilli(*want.LimitMilli), now.UUID, gpu.FormatMilli(max(1, now.GuaranteeMilli)), gpu.FormatMilli(most))
	}
	now.LimitMilli = *want.LimitMilli
	return nil
}

// LaterEnv are the variables with which programs that start from now on have the limits
// of a holding: a program reads them once.
func LaterEnv(h gpu.Holding, sharing gpu.Sharing) map[string]string {
	env := map[string]string{}
	if sharing == gpu.SharingMPS {
		maps.Copy(env, gpu.MPSEnv(mpsPipePath, mpsLogPath, h.Share))
		delete(env, gpu.EnvMPSPipeDir)
		delete(env, gpu.EnvMPSLogDir)
	}
	return env
}
