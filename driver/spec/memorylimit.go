// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// MemoryLimit is what NVIDIA's driver is asked to hold a task to on one GPU, all its
// processes together: GuaranteeMiB is its own, and it gets no more than LimitMiB. Command
// asks for that (see gpu.MemoryLimiter).
type MemoryLimit struct {
	UUID                   string
	Command                []string
	GuaranteeMiB, LimitMiB int64
}

// memoryBurst is the limit above the guarantee that a task asks for, 0 for none. Memory
// above it is lent: MPS takes it back, and ends the program that has it, when a neighbor
// wants its own part.
func memoryBurst(d gpu.ReservedDevice, state gpu.GPUState, guarantee int64, want taskconfig.GPURequest) (int64, error) {
	const key = "gpu.memory_limit: "
	limit := want.MemoryLimitMiB
	switch {
	case limit == 0:
		return 0, nil
	case d.Whole() || d.Mode != gpu.ModeSlice:
		return 0, fmt.Errorf(key+"%s is for tasks that hold slices of a GPU, and GPU %s is not given so; remove it", gpu.FormatMemory(limit), d.UUID)
	case state.Limiter == nil || state.Sharing != gpu.SharingMPS:
		return 0, fmt.Errorf(key+"%s cannot be held on GPU %s: it needs NVIDIA's driver from branch 615 (CUDA 13.4) on, cgroup v2 and sharing = \"mps\" on the node, and no MIG; remove it, or ask for a GPU whose attribute grade is %q",
			gpu.FormatMemory(limit), d.UUID, gpu.GradeEnforced)
	case limit < guarantee:
		return 0, fmt.Errorf(key+"%s is below the %s that are the task's own; write at least that", gpu.FormatMemory(limit), gpu.FormatMemory(guarantee))
	case limit > int64(state.Slices)*state.SliceMemoryMiB:
		return 0, fmt.Errorf(key+"%s is more than the %s that all slices of GPU %s have; write at most that", gpu.FormatMemory(limit),
			gpu.FormatMemory(int64(state.Slices)*state.SliceMemoryMiB), d.UUID)
	case limit == guarantee:
		return 0, nil
	}
	return limit, nil
}
