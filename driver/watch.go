// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// currentLease is a lease of a record with the share that its container has now: what the
// task has changed stands in its lease.
func (d *Driver) currentLease(l gpu.Lease) gpu.Lease {
	n, err := d.configured()
	if err != nil {
		return l
	}
	if now, err := n.state.Lease(l.ID); err == nil && now.Container == l.Container && now.Live() && len(now.Holdings) == len(l.Holdings) {
		l.Holdings = now.Holdings
	}
	return l
}

// watch makes a task and waits for its end in the background.
func (d *Driver) watch(cfg *drivers.TaskConfig, c *runtime.Container, r record.Record) *task {
	ctx, t := d.newTask(cfg, c, r)
	d.work.start(func() { d.await(ctx, t) })
	d.work.start(func() { d.serveSelf(ctx, t) })
	return t
}

// newTask makes a task and the context of its watch.
func (d *Driver) newTask(cfg *drivers.TaskConfig, c *runtime.Container, r record.Record) (context.Context, *task) {
	ctx, cancel := context.WithCancel(d.ctx)
	t := &task{
		cfg: cfg, container: c, record: r, cancel: cancel, done: make(chan struct{}),
		sharedCores: cgroups.Follows(cfg, cgroups.Of(r.Lease), cgroups.Unified()),
		logger:      d.logger.With("task_id", cfg.ID, "container", c.ID),
	}
	if now := d.currentLease(r.Lease); len(now.Holdings) > 0 {
		t.own.holdings.Store(&now.Holdings)
	}
	d.tasks.put(t)
	return ctx, t
}
