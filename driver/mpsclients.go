// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// A client of an MPS server that is killed by a signal leaves the server's other
// clients in an undefined state, says NVIDIA. So the driver asks the daemon first to
// terminate the clients of the task; what the device plugin publishes of the GPU
// says how to reach it.

const (
	// terminateTimeout is how long ending a task's clients may hold up its kill,
	// questionTimeout how long one question of it may.
	terminateTimeout = 5 * time.Second
	questionTimeout  = 2 * time.Second
)

// terminateClients ends the GPU work of a task's processes before they are killed.
// An error says that the kill goes around MPS.
func (d *Driver) terminateClients(t *task) error {
	holding, state, found := d.mpsOf(t)
	if !found {
		return nil
	}
	ctx, cancel := context.WithTimeout(d.ctx, terminateTimeout)
	defer cancel()
	c := mpsctl.Control{Program: state.Control, PipeDir: state.CommandDir(), Timeout: questionTimeout}
	dirs, err := cgroups.Tree(cgroups.Of(t.record.Lease), cgroups.Unified())
	if err != nil {
		return err
	}
	own, err := cgroups.Processes(dirs)
	if err != nil {
		return err
	}
	if state.HasNamespaces() {
		return terminatePrograms(ctx, mpsctl.V3{Control: c}, func(pid int) bool { return slices.Contains(own, pid) })
	}
	servers, err := c.Servers(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for _, server := range servers {
		clients, err := c.Clients(ctx, server)
		problems = append(problems, err)
		for _, pid := range clients {
			if !slices.Contains(own, pid) {
				continue
			}
			t.logger.Info("terminating MPS client", "gpu", holding.UUID, "pid", pid)
			problems = append(problems, c.Terminate(ctx, server, pid))
		}
	}
	return errors.Join(problems...)
}

// mpsOf is the daemon whose client a task is; none where that was replaced, or
// where the device plugin does not say how to reach it.
func (d *Driver) mpsOf(t *task) (gpu.Holding, gpu.MPSState, bool) {
	n, err := d.configured()
	if err != nil {
		return gpu.Holding{}, gpu.MPSState{}, false
	}
	for _, h := range t.record.Lease.Holdings {
		if h.MPSGeneration == 0 {
			continue
		}
		s, err := n.state.GPU(h.UUID)
		if err == nil && s.MPS != nil && s.MPS.Control != "" && s.MPS.Generation == h.MPSGeneration {
			return h, *s.MPS, true
		}
	}
	return gpu.Holding{}, gpu.MPSState{}, false
}

// tellNeighbors tells the other clients of a task's MPS server that it was killed
// around MPS: what happens to their work on the GPU is undefined.
func (d *Driver) tellNeighbors(t *task, reason string) {
	holding, _, found := d.mpsOf(t)
	if !found {
		return
	}
	for _, other := range d.tasks.all() {
		if other == t || other.exited() {
			continue
		}
		for _, h := range other.record.Lease.Holdings {
			if h.UUID == holding.UUID && h.MPSGeneration == holding.MPSGeneration {
				d.emit(other.cfg, fmt.Sprintf(
					"GPU %s: another task on its MPS server was killed and could not be terminated by MPS first (%s); CUDA calls of this task can fail, restart it if they do (nomad alloc restart)",
					h.UUID, reason), map[string]string{"gpu": h.UUID, "fault": codeKilledNeighbor})
			}
		}
	}
}

// followDaemons shows tasks the MPS daemons that their GPUs have now.
func (d *Driver) followDaemons(env environment, tasks []*task) {
	dirs := pipes(env.settings)
	for _, t := range tasks {
		for _, h := range t.record.Lease.Holdings {
			if h.MPSGeneration == 0 {
				continue
			}
			s, err := env.state.GPU(h.UUID)
			if err != nil || s.MPS == nil || !s.MPS.Ready {
				continue // when there is one, the device plugin says so
			}
			changed, err := dirs.Follow(t.container.ID, s.MPS.GateFiles())
			if err != nil {
				t.logger.Warn("the task does not see its GPU's new MPS daemon", "error", err)
			} else if changed {
				t.logger.Info("the task sees its GPU's new MPS daemon")
			}
		}
	}
}
