// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A task that holds all slices runs without MPS: a GPU that lets in its MPS server
// only must be open before the task's program runs.
func TestTaskWithAllSlicesWaitsUntilTheGPUIsOpen(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		exclusive := func(s *gpu.GPUState) { s.Exclusive = true }
		n.publish(gpuA, exclusive)
		n.publish(gpuB, exclusive)
		// What shares the GPU comes through MPS, and waits for nothing.
		e.start(e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuB, 0)))

		// The device plugin goes by the lease.
		var leased, opened bool
		e.driver.after(func(step string) {
			switch step {
			case "claim":
				leases, _ := n.dir.Leases()
				leased = slices.ContainsFunc(leases, func(l gpu.Lease) bool {
					return l.Phase == gpu.PhaseStarting && len(l.Holdings[0].Slices) == 16
				})
				time.AfterFunc(3*openPoll, func() { n.publish(gpuA, func(*gpu.GPUState) {}) })
			case "open":
				state, err := n.dir.GPU(gpuA)
				opened = err == nil && !state.Exclusive
			}
		})
		e.start(e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, allSlices()...)))
		must.True(t, leased)
		must.True(t, opened)
	})
}

func TestStartThatWaitsForAnOpenGPUCanBeCanceled(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		n.publish(gpuA, func(s *gpu.GPUState) { s.Exclusive = true })
		claimed := make(chan struct{})
		e.afterStep("claim", func() { close(claimed) })
		all := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, allSlices()...))
		started := make(chan error, 1)
		go func() {
			_, _, err := e.harness.StartTask(all)
			started <- err
		}()
		<-claimed
		nomad := newNomadState(t)
		must.NoError(t, errors.Join(nomad.stop(all), e.endUnwanted(nomad)))
		err := <-started
		must.Error(t, err)
		must.StrNotContains(t, err.Error(), "has not opened it")
		e.nothingLeft()
	})
}
