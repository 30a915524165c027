// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// remove deletes a container and all that belongs to it, under a context of its
// own: it must also succeed when the call that needs it was canceled. Its record
// goes after the resources found by it alone; host resources without a container are
// found by themselves.
func (d *Driver) remove(c *runtime.Container) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	n, err := d.configured()
	if err != nil {
		return err
	}
	d.releaseMemory(ctx, n, c) // the control group ends with the process
	if err := c.End(ctx); err != nil {
		// Whatever happens to its record: nothing of it may run.
		return errors.Join(err, cgroups.Empty(ctx, record.Cgroup(n.settings.Namespace, c), cgroups.Unified()))
	}
	if err := cgroups.Remove(ctx, record.Cgroup(n.settings.Namespace, c), cgroups.Unified()); err != nil {
		return err
	}
	if r, err := record.Of(c); err == nil {
		d.returnPartition(ctx, n, r.Lease)
		d.returnNamespace(ctx, n, r.Lease)
	}
	if err := c.Remove(ctx); err != nil {
		return err
	}
	if err := d.removeHostResources(c.ID); err != nil {
		return err
	}
	if c.Labels[record.LabelManaged] == "" {
		return nil
	}
	if err := n.runtime.TouchImage(ctx, c.Image, time.Now()); err != nil && !errors.Is(err, runtime.ErrNotFound) {
		d.logger.Debug("use of an image is not recorded", "image", c.Image, "error", err)
	}
	return nil
}

// removeHostResources removes what belongs to a container that does not exist.
func (d *Driver) removeHostResources(id string) error {
	n, err := d.configured()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var problems []error
	for _, r := range hostResources(n.settings) {
		problems = append(problems, r.Remove(ctx, id))
	}
	return errors.Join(problems...)
}

// removeWithLease removes a container that is known by its labels only, and ends its
// lease.
func (d *Driver) removeWithLease(c *runtime.Container) error {
	r, recordErr := record.Of(c)
	if err := d.remove(c); err != nil {
		return err
	}
	if recordErr != nil {
		d.logger.Warn("container had no readable record", "container", c.ID, "error", recordErr)
		return nil
	}
	return d.leases.End(r.Lease, time.Now())
}

// The delays between attempts to remove a container, which grow.
const (
	firstRemoveDelay = 500 * time.Millisecond
	lastRemoveDelay  = 30 * time.Second
)

// removeLater goes on to remove a container that Nomad wants no more, until that
// succeeds. A process that comes after this one does the same: see removeDestroyed.
func (d *Driver) removeLater(c *runtime.Container, cause error) {
	d.logger.Warn("a container is not removed yet; its GPU share is not given to another until it is", "container", c.ID, "error", cause)
	if env, err := d.configured(); err == nil {
		if err := record.StoreIn(env.settings.StateDir).MarkDestroyed(c.ID); err != nil {
			d.logger.Error("only this process knows that a container must be removed", "container", c.ID, "error", err)
		}
	}
	d.work.start(func() {
		for delay := firstRemoveDelay; pause(d.ctx, delay); delay = min(2*delay, lastRemoveDelay) {
			if err := d.removeWithLease(c); err == nil {
				d.logger.Info("a container that could not be removed before is removed", "container", c.ID)
				return
			}
		}
	})
}
