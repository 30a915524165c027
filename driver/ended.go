// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// await waits for the container's end, through restarts of containerd.
func (d *Driver) await(ctx context.Context, t *task) {
	for {
		exit, err := t.container.Wait(ctx)
		switch {
		case err == nil:
			d.ended(ctx, t, exit, nil)
			return
		case ctx.Err() != nil:
			return
		case errors.Is(err, runtime.ErrNotFound):
			d.lost(ctx, t)
			return
		}
		t.logger.Debug("waiting for containerd", "error", err)
		if !pause(ctx, retryDelay) {
			return
		}
	}
}

// errLost is the result of a task whose process containerd no longer knows.
var errLost = errors.New("containerd lost the task's process, for instance because its shim died; the exit code is not known")

// lost handles a process that is gone without an exit that was seen.
func (d *Driver) lost(ctx context.Context, t *task) {
	if labels, err := t.container.CurrentLabels(ctx); err == nil {
		if exit, ok := record.ExitOf(labels); ok {
			d.ended(ctx, t, exit, nil)
			return
		}
	}
	d.ended(ctx, t, runtime.Exit{Code: 137, At: time.Now()}, errLost)
}

// ended records how a task ended: in its lease, for who waits, and in its
// container's labels, so that a restart of the driver or a reboot does not lose
// the exit code.
func (d *Driver) ended(ctx context.Context, t *task, exit runtime.Exit, problem error) {
	if exit.Code != 0 && !t.killed.Load() {
		exit.OOMKilled = exit.OOMKilled || t.container.OOMKilled(ctx)
	}
	if signal, died := diedOf(exit.Code); died && !t.killed.Load() {
		d.tellNeighbors(t, fmt.Sprintf("it ended by %s, which did not come from the driver", unix.SignalName(signal)))
	}
	// The shim's death, or a process ID namespace that others share, may leave
	// processes; none may use the GPU when the lease has ended.
	for {
		err := cgroups.Empty(ctx, cgroups.Of(t.record.Lease), cgroups.Unified())
		if err == nil {
			break
		}
		t.logger.Warn("an ended task keeps its lease until all its processes have ended", "error", err)
		if !pause(ctx, retryDelay) {
			return
		}
	}
	if err := d.leases.End(t.lease(), exit.At); err != nil {
		t.logger.Error("lease of an ended task stays live", "error", err)
	}
	t.finish(exit, problem)
	if err := t.container.SetLabels(ctx, record.ExitLabels(exit)); err != nil && !errors.Is(err, runtime.ErrNotFound) && ctx.Err() == nil {
		t.logger.Warn("exit code is not recorded with the container", "error", err)
	}
}

// sudden are the signals by which programs end that had no time to leave MPS: kills of
// others, and crashes. What SIGTERM and SIGINT end mostly ends by itself, and says so
// with the same code.
var sudden = []unix.Signal{unix.SIGKILL, unix.SIGSEGV, unix.SIGABRT, unix.SIGBUS, unix.SIGILL, unix.SIGFPE, unix.SIGTRAP, unix.SIGSYS, unix.SIGQUIT}

// diedOf is the signal that an exit code stands for, where it is a sudden one.
func diedOf(code int) (unix.Signal, bool) {
	signal := unix.Signal(code - 128)
	return signal, slices.Contains(sudden, signal)
}
