// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// usageMaxAge is how old a measurement may be to act upon.
const usageMaxAge = 30 * time.Second

// violation is what a task did beyond its share of one GPU.
type violation struct {
	uuid    string
	code    string
	message string
}

func (v violation) Error() string { return v.message }

// The codes of what only the driver knows.
const (
	codeMemory         = "memory"
	codeBesideMPS      = "beside-mps"
	codeBorrowed       = "memory-borrowed"
	codeUnmeasured     = "unmeasured"
	codeLostServer     = "mps-restarted"
	codeServerFault    = "mps-fault"
	codeKilledNeighbor = "mps-neighbor-killed"
)

// violations compares a task's measured use with its share.
func violations(l gpu.Lease, usage []gpu.TaskUsage) []violation {
	var found []violation
	for _, h := range l.Holdings {
		used, processes := int64(0), 0
		for _, u := range usage {
			if u.UUID != h.UUID {
				continue
			}
			used += u.MemoryMiB
			processes += u.Processes
			if len(u.BesideMPS) > 0 {
				found = append(found, violation{h.UUID, codeBesideMPS, fmt.Sprintf(
					"processes %v use GPU %s without its MPS daemon, where no limit holds them", u.BesideMPS, h.UUID)})
			}
		}
		if most := h.MostMiB(); most > 0 && used > most+tolerance(most) {
			found = append(found, violation{h.UUID, codeMemory, fmt.Sprintf(
				"%d processes use %s of memory of GPU %s together, the task's share is %s",
				processes, gpu.FormatMemory(used), h.UUID, gpu.FormatMemory(most))})
		}
	}
	return found
}

// A task is above its share when it is measured above it by more than this: NVML
// counts what the driver keeps for a context, which a program cannot choose.
const (
	toleranceMiB     = 64
	tolerancePercent = 2
)

// tolerance is how far above a share a task may be measured.
func tolerance(shareMiB int64) int64 { return max(toleranceMiB, shareMiB*tolerancePercent/100) }
