// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

const (
	// openTimeout is how long a GPU may take to be opened to a task that holds all of
	// it: the device plugin finds the task's lease with its next survey.
	openTimeout = 30 * time.Second
	openPoll    = 50 * time.Millisecond
)

// awaitOpen waits until the GPUs whose slices the task holds all let in programs
// that are not their MPS server's clients.
func awaitOpen(ctx context.Context, held []gpu.Holding, dir *statedir.Dir) error {
	for limit := time.Now().Add(openTimeout); ; {
		uuid, found := closedGPU(held, dir)
		if !found {
			return nil
		}
		if !pause(ctx, openPoll) {
			return ctx.Err()
		}
		if time.Now().After(limit) {
			return &spec.NotReadyError{UUID: uuid, Reason: "its compute mode lets in its MPS server only, and the device plugin has not opened it to a task that holds all of it; see whether nomad-device-gpu runs on this node"}
		}
	}
}

// closedGPU finds a GPU that does not let a task in which holds all its slices.
func closedGPU(held []gpu.Holding, dir *statedir.Dir) (string, bool) {
	at := slices.IndexFunc(held, func(h gpu.Holding) bool {
		state, err := dir.GPU(h.UUID)
		return err == nil && state.Exclusive && h.Mode == gpu.ModeSlice && len(h.Slices) == state.Slices
	})
	if at < 0 {
		return "", false
	}
	return held[at].UUID, true
}
