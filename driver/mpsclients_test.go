// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// NVIDIA asks that clients of MPS are terminated before they are killed.
func TestMPSClientsAreTerminatedBeforeTheyAreKilled(t *testing.T) {
	server := standInServer(t)
	for _, tc := range []struct {
		branch, behavior string
		// told is what the neighbors hear of a kill that went around MPS.
		told string
	}{
		{"535", "", ""}, {"555", "", ""},
		{"470", "", "does not know the command"},
		{"555", "stubborn\n", "terminate_client"},
	} {
		t.Run(tc.branch+" "+strings.TrimSpace(tc.behavior), func(t *testing.T) {
			program := nvidiaControl(t, tc.branch)
			withContainerd(t, func(t *testing.T, e *env) {
				n := newNode(e)
				control, _ := startControl(t, n, program, server)
				events, err := e.driver.TaskEvents(context.Background())
				must.NoError(t, err)
				neighbor := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 1))
				e.start(neighbor)
				must.StrContains(t, nextEvent(t, events).Message, "GPU share")
				// The shell ignores the signal: it must be killed.
				cfg := e.task(defaultTaskConfig("sh", "-c", stubborn), reserve(gpuA, 0))
				e.start(cfg)
				e.waitUntilReady(cfg)
				must.StrContains(t, nextEvent(t, events).Message, "GPU share")
				own, other := itoa(e.pid(cfg)), itoa(e.pid(neighbor))
				must.NoError(t, os.WriteFile(filepath.Join(control.PipeDir, "behavior"), []byte(tc.behavior+"clients "+own+" "+other+"\n"), 0o644))
				must.NoError(t, e.harness.StopTask(cfg.ID, time.Millisecond, "SIGTERM"))
				e.wait(cfg.ID)
				terminated, _ := os.ReadFile(filepath.Join(control.PipeDir, "terminated"))
				if tc.told == "" {
					must.Eq(t, own+"\n", string(terminated))
				} else {
					must.Eq(t, "", string(terminated))
					event := nextEvent(t, events)
					must.Eq(t, neighbor.ID, event.TaskID)
					must.StrContains(t, event.Message, tc.told)
				}
				n.publish(gpuA, func(s *gpu.GPUState) { s.Faults = []gpu.Fault{{Code: "next", Message: "the next event"}} })
				must.StrContains(t, nextEvent(t, events).Message, "the next event")
			})
		})
	}
}

// A daemon that does not answer holds up a kill for a moment only.
func TestKillIsNotHeldUpByMPS(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		slow := filepath.Join(e.dir, "slow")
		must.NoError(t, os.WriteFile(slow, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755))
		n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Control = slow })
		cfg := e.task(defaultTaskConfig("sh", "-c", stubborn), reserve(gpuA, 0))
		e.start(cfg)
		e.waitUntilReady(cfg)
		began := time.Now()
		must.NoError(t, e.harness.StopTask(cfg.ID, time.Millisecond, "SIGTERM"))
		must.Less(t, patience, time.Since(began))
		must.Eq(t, 137, e.wait(cfg.ID).ExitCode)
	})
}

func TestNeighborsHearOfAKillThatWasNotTheDrivers(t *testing.T) {
	for _, signal := range []unix.Signal{unix.SIGKILL, unix.SIGSEGV, unix.SIGTERM} {
		t.Run(unix.SignalName(signal), func(t *testing.T) { neighborsHearOf(t, signal) })
	}
}

// neighborsHearOf lets a task end by a signal. What ends by SIGTERM left in time.
func neighborsHearOf(t *testing.T, signal unix.Signal) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Control = "/nonexistent" })
		events, err := e.driver.TaskEvents(context.Background())
		must.NoError(t, err)
		neighbor := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 1))
		cfg := e.task(defaultTaskConfig("sh", "-c", "trap 'exit 139' SEGV; trap 'exit 143' TERM; touch /local/ready; while true; do sleep 0.05; done"), reserve(gpuA, 0))
		elsewhere := e.task(defaultTaskConfig("sleep", "1000"))
		for _, c := range []*drivers.TaskConfig{neighbor, cfg} {
			e.start(c)
			must.StrContains(t, nextEvent(t, events).Message, "GPU share")
		}
		e.start(elsewhere)
		e.waitUntilReady(cfg)
		must.NoError(t, unix.Kill(e.pid(cfg), signal))
		must.Eq(t, 128+int(signal), e.wait(cfg.ID).ExitCode)
		if signal != unix.SIGTERM {
			event := nextEvent(t, events)
			must.Eq(t, neighbor.ID, event.TaskID)
			must.StrContains(t, event.Message, "it ended by "+unix.SignalName(signal)+", which did not come from the driver")
		}
		n.publish(gpuA, func(s *gpu.GPUState) { s.Faults = []gpu.Fault{{Code: "next", Message: "the next event"}} })
		must.StrContains(t, nextEvent(t, events).Message, "the next event")
	})
}

// In single-user mode CUDA makes a program of another user wait without a word.
func TestTaskOfAnotherUserWaitsWithAReason(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		user := func(uid string) func(*drivers.TaskConfig) {
			return func(cfg *drivers.TaskConfig) { cfg.User = uid }
		}
		n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Users = gpu.MPSUsersOne })
		first := e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 0), user("1000"))
		e.start(first)
		other := e.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 1), user("1001"))
		_, _, err := e.harness.StartTask(other)
		must.ErrorContains(t, err, "runs there as user 1000, and this one is for user 1001")
		must.True(t, structs.IsRecoverable(err))
		e.start(e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 2), user("1000")))
		e.start(e.task(defaultTaskConfig("sleep", "1000"), reserve(gpuB, 0), user("1001")))
		n.publish(gpuA, func(s *gpu.GPUState) { s.MPS.Users = gpu.MPSUsersAny })
		e.start(other)
	})
}
