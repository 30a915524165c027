// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// reapLoop tidies up now and then: what crashes of this process, of Nomad's
// client or of containerd left behind.
func (d *Driver) reapLoop() {
	began := time.Now()
	for {
		n, err := d.configured()
		if err != nil {
			return
		}
		select {
		case <-time.After(n.settings.GCPeriod):
		case <-d.ctx.Done():
			return
		}
		if err := d.reap(n.runtime, n.settings, began, time.Now()); err != nil {
			d.logger.Warn("tidying up was not complete", "error", err)
		}
	}
}

// reap does one round. Nothing younger than the grace period is touched, and
// nothing at all before the driver has run for that long: Nomad's client brings
// its tasks back one by one.
func (d *Driver) reap(client *runtime.Runtime, s config.Settings, began, now time.Time) error {
	var problems []error
	// Each step has its own time with containerd.
	step := func(do func(ctx context.Context) error) {
		ctx, cancel := context.WithTimeout(d.ctx, startTimeout)
		defer cancel()
		problems = append(problems, do(ctx))
	}
	if s.GC.Container && now.Sub(began) >= s.GCGrace {
		before := now.Add(-s.GCGrace)
		step(func(ctx context.Context) error { return d.reapContainers(ctx, client, before) })
		step(func(ctx context.Context) error { return client.CollectLeftovers(ctx, record.IDs, before) })
		step(func(ctx context.Context) error { return d.reapLeases(ctx, client, before) })
		step(func(ctx context.Context) error { return d.reapHostResources(ctx, client, s, before) })
	}
	problems = append(problems, d.leases.Expire(now), outputMarks(s).Expire(now))
	if s.GC.Image {
		step(func(ctx context.Context) error {
			removed, err := client.CollectImages(ctx, now.Add(-s.GCImageDelay))
			for _, name := range removed {
				d.logger.Info("removed an unused image", "image", name)
			}
			return err
		})
	}
	return errors.Join(problems...)
}

// reapContainers removes the driver's containers that no task has. They are told
// from those of other drivers by their owner, not by their node: a node that has
// no task after a reboot has told no name.
func (d *Driver) reapContainers(ctx context.Context, client *runtime.Runtime, before time.Time) error {
	found, err := client.Owned(ctx)
	if err != nil {
		return err
	}
	var problems []error
	for _, c := range found {
		if _, err := d.tasks.get(c.Labels[record.LabelTaskID]); err == nil || !c.CreatedAt.Before(before) {
			continue
		}
		d.logger.Warn("removing a container that no task has", "container", c.ID, "alloc", c.Labels[record.LabelAlloc], "task", c.Labels[record.LabelTask])
		if err := d.removeWithLease(c); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// reapLeases ends the leases of tasks whose container is gone, once nothing of them
// runs.
func (d *Driver) reapLeases(ctx context.Context, client *runtime.Runtime, before time.Time) error {
	leases, err := d.leases.Started()
	if err != nil {
		return err
	}
	var problems []error
	for _, l := range leases {
		if !l.StartedAt.Before(before) {
			continue
		}
		_, err := client.Load(ctx, l.Container)
		if err == nil {
			continue
		}
		if errors.Is(err, runtime.ErrNotFound) {
			err = cgroups.Empty(ctx, cgroups.Of(l), cgroups.Unified())
		}
		if err == nil {
			d.logger.Warn("ending a lease whose container is gone", "lease", l.ID)
			err = d.leases.End(l, time.Now())
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("lease %s: %w", l.ID, err))
		}
	}
	return errors.Join(problems...)
}

// reapHostResources removes networks and shared memory whose container is gone or
// was never made.
func (d *Driver) reapHostResources(ctx context.Context, client *runtime.Runtime, s config.Settings, before time.Time) error {
	var problems []error
	for _, r := range hostResources(s) {
		ids, err := r.IDs(before)
		problems = append(problems, err)
		for _, id := range ids {
			_, err := client.Load(ctx, id)
			switch {
			case err == nil:
			case errors.Is(err, runtime.ErrNotFound):
				problems = append(problems, r.Remove(ctx, id))
			default:
				problems = append(problems, fmt.Errorf("look for container %s: %w", id, err))
			}
		}
	}
	return errors.Join(problems...)
}
