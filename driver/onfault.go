// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// fatal returns why a task cannot go on on a device that it holds: a fault that
// ends what runs there, the loss of the MPS daemon whose client it is, or a fatal
// error of any client of it.
func fatal(l gpu.Lease, h gpu.Holding, s gpu.GPUState) (violation, bool) {
	if at := slices.IndexFunc(s.Faults, func(f gpu.Fault) bool { return f.Fatal }); at >= 0 {
		return violation{h.UUID, s.Faults[at].Code, fmt.Sprintf("GPU %s: %s", h.UUID, s.Faults[at].Message)}, true
	}
	if lostServer(h, s) {
		return violation{h.UUID, codeLostServer, fmt.Sprintf("GPU %s: the MPS daemon that the task was a client of has ended", h.UUID)}, true
	}
	return serverFault(l, h, s)
}

// serverFault is a fault of the MPS server whose client a task is: a fatal error of
// one program ends the GPU work of all, and the server takes new ones when all have
// ended. A task that began later was not there.
func serverFault(l gpu.Lease, h gpu.Holding, s gpu.GPUState) (violation, bool) {
	if h.MPSGeneration == 0 || s.MPS == nil || s.MPS.Fault == nil || s.MPS.Generation != h.MPSGeneration ||
		l.StartedAt.After(s.MPS.Fault.Since.Add(time.Second)) { // which is in whole seconds
		return violation{}, false
	}
	whose := "a program"
	switch s.MPS.FaultOf {
	case "":
	case l.ID:
		whose = "a program of this task"
	default:
		whose = "a program of another task"
	}
	return violation{h.UUID, codeServerFault, fmt.Sprintf(
		"GPU %s: %s had a fatal GPU error, which ended the GPU work of all programs on its MPS server", h.UUID, whose)}, true
}

// lostServer reports whether the MPS daemon of a holding was replaced: CUDA does
// not reconnect, so what the task had on the GPU is lost.
func lostServer(h gpu.Holding, s gpu.GPUState) bool {
	return h.MPSGeneration != 0 && s.MPS != nil && s.MPS.Generation > h.MPSGeneration
}
