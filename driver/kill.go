// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// kill ends a task for certain: through containerd or, while that is away, by the
// task's control group.
func (d *Driver) kill(t *task) error {
	t.killed.Store(true)
	d.leaveGPU(t)
	if err := d.terminateClients(t); err != nil {
		t.logger.Warn("killing a task whose MPS clients could not be terminated", "error", err)
		d.tellNeighbors(t, err.Error())
	}
	err := d.signal(t, syscall.SIGKILL, true, awayTimeout)
	if runtime.Transient(err) {
		return d.killWithoutContainerd(t)
	}
	if err != nil {
		return err
	}
	select {
	case <-t.done:
		return nil
	case <-d.ctx.Done():
		return d.ctx.Err() // the end of the task is no longer watched
	case <-time.After(callTimeout):
		return fmt.Errorf("container %s has not ended %s after SIGKILL", t.container.ID, callTimeout)
	}
}

// killWithoutContainerd ends a task while containerd cannot be asked.
func (d *Driver) killWithoutContainerd(t *task) error {
	ctx, cancel := context.WithTimeout(d.ctx, callTimeout)
	defer cancel()
	if err := cgroups.Empty(ctx, cgroups.Of(t.record.Lease), cgroups.Unified()); err != nil {
		return err
	}
	t.logger.Warn("killed a task by its control group: containerd is away")
	d.ended(ctx, t, runtime.Exit{Code: 128 + int(syscall.SIGKILL), At: time.Now()}, nil)
	return nil
}

// signal sends a signal; that the process is gone already is not an error. It waits for
// a containerd that is away.
func (d *Driver) signal(t *task, number syscall.Signal, all bool, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	err := retryTransient(ctx, func() error { return t.container.Signal(ctx, number, all) })
	if errors.Is(err, runtime.ErrNotFound) {
		return nil
	}
	return err
}
