// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// Under MPS v3 a task has a namespace of its GPU's server, with the limits of its share. It
// is made before the container and removed when all its processes are dead; its lease is
// written before, so that the device plugin removes what a driver that was killed has left.

// namespaced is the holding of a task that has a namespace, and how to reach its daemon;
// false for other tasks, and for those whose daemon was replaced.
func namespaced(n environment, l gpu.Lease) (gpu.Holding, gpu.GPUState, mpsctl.V3, bool) {
	for _, h := range l.Holdings {
		if h.MPSGeneration == 0 {
			continue
		}
		s, err := n.state.GPU(h.UUID)
		if err != nil || s.MPS == nil || !s.MPS.HasNamespaces() || s.MPS.Generation != h.MPSGeneration {
			continue
		}
		return h, s, mpsctl.V3{Control: mpsctl.Control{Program: s.MPS.Control, PipeDir: s.MPS.CommandDir(), Timeout: partitionAnswer}}, true
	}
	return gpu.Holding{}, gpu.GPUState{}, mpsctl.V3{}, false
}

// limitsOf are those of a task's programs in its namespace. They are rounded up: a program
// never has less than its share.
func limitsOf(h gpu.Holding, s gpu.GPUState, belowNormal bool) mpsctl.Limits {
	l := mpsctl.LimitsOf(h.MostMiB(), h.LimitMilli, s.MPS.Multiprocessors)
	l.BelowNormal = belowNormal
	return l
}

// takeNamespace makes the namespace that a task is to have, and places its control group in
// it.
func (d *Driver) takeNamespace(ctx context.Context, p *startPlan) error {
	h, s, c, found := namespaced(p.env, p.record.Lease)
	if !found {
		return nil
	}
	name := gpu.MPSNamespace(p.record.Lease.Container)
	err := c.Open(ctx, gpu.MPSServer, name, limitsOf(h, s, p.record.BelowNormal))
	if err == nil {
		err = mpsctl.PlacesOf(c.PipeDir).Put(name, p.record.Lease.Cgroup)
	}
	if err != nil {
		return &spec.NotReadyError{UUID: h.UUID, Reason: "the task gets no MPS namespace: " + err.Error()}
	}
	return nil
}

// returnNamespace removes a task's namespace, when its processes are dead. One that the
// server still has programs in is left to the device plugin.
func (d *Driver) returnNamespace(ctx context.Context, n environment, l gpu.Lease) {
	_, _, c, found := namespaced(n, l)
	if !found {
		return
	}
	name := gpu.MPSNamespace(l.Container)
	limit := time.After(partitionWait)
	for {
		err := mpsctl.PlacesOf(c.PipeDir).Remove(name)
		if err == nil {
			err = c.Close(ctx, gpu.MPSServer, name)
		}
		if err == nil {
			return
		}
		select {
		case <-time.After(partitionPoll):
			continue
		case <-limit:
		case <-ctx.Done():
		}
		d.logger.Warn("an MPS namespace stays until the device plugin removes it", "container", l.Container, "error", err)
		return
	}
}

// limitNamespace gives a running task's namespace other limits.
func limitNamespace(ctx context.Context, n environment, l gpu.Lease, belowNormal bool) error {
	h, s, c, found := namespaced(n, l)
	if !found {
		return nil
	}
	err := c.Limit(ctx, gpu.MPSServer, gpu.MPSNamespace(l.Container), limitsOf(h, s, belowNormal))
	if errors.Is(err, mpsctl.ErrInUse) {
		return fmt.Errorf("resize: limit: GPU %s: this driver's MPS changes a task's limits only while none of its programs is on the GPU", h.UUID)
	}
	return err
}

// terminatePrograms ends the GPU work of a task's processes.
func terminatePrograms(ctx context.Context, c mpsctl.V3, mine func(pid int) bool) error {
	programs, err := c.Programs(ctx, gpu.MPSServer)
	if err != nil {
		return err
	}
	var problems []error
	for _, p := range programs {
		if mine(p.PID) {
			problems = append(problems, c.End(ctx, p.PID))
		}
	}
	return errors.Join(problems...)
}
