// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// RecoverTask takes up a task that an earlier process of the driver started. A
// task that ended meanwhile is taken up too, so that its exit code is reported.
// Only a task whose fate cannot be known any more is an error, upon which Nomad
// destroys the rest and starts it again.
func (d *Driver) RecoverTask(handle *drivers.TaskHandle) error {
	if handle == nil || handle.Config == nil {
		return fmt.Errorf("recover task: the handle is empty")
	}
	cfg := handle.Config
	if _, err := d.tasks.get(cfg.ID); err == nil {
		return nil
	}
	if handle.Version > handleVersion {
		return fmt.Errorf("recover task %q: its handle has version %d, this release reads 1 to %d", cfg.ID, handle.Version, handleVersion)
	}
	n, err := d.configured()
	if err != nil {
		return err
	}
	container, err := findTask(n.runtime, cfg)
	if runtime.Transient(err) {
		return d.recoverWithoutContainerd(n, cfg, err)
	}
	if err != nil {
		return fmt.Errorf("recover task %q: %w", cfg.ID, err)
	}
	r, err := record.Of(container)
	if err != nil {
		return fmt.Errorf("recover task %q: %w", cfg.ID, err)
	}
	ctx, cancel := context.WithTimeout(d.ctx, callTimeout)
	defer cancel()
	if _, err := d.resume(ctx, cfg, container, r); err != nil {
		return fmt.Errorf("recover task %q: %w", cfg.ID, err)
	}
	return nil
}

// recoverWithoutContainerd takes up a task while containerd cannot be asked: the record that
// the driver itself has of it is enough to stop it. Its state comes out when
// containerd is back. A failed recovery would have Nomad give its GPU to others.
func (d *Driver) recoverWithoutContainerd(env environment, cfg *drivers.TaskConfig, away error) error {
	records, err := record.StoreIn(env.settings.StateDir).OfTask(cfg.ID)
	if err != nil || len(records) == 0 {
		return fmt.Errorf("recover task %q: %w", cfg.ID, errors.Join(away, err))
	}
	c := records[0].Unloaded(env.runtime)
	d.logger.Warn("a task is recovered while containerd is away", "task_id", cfg.ID, "container", c.ID)
	d.watch(cfg, c, records[0].Record)
	return nil
}

func findTask(client *runtime.Runtime, cfg *drivers.TaskConfig) (*runtime.Container, error) {
	ctx, cancel := context.WithTimeout(context.Background(), awayTimeout)
	defer cancel()
	var found []*runtime.Container
	err := retryTransient(ctx, func() (err error) {
		found, err = client.Find(ctx, map[string]string{record.LabelTaskID: cfg.ID, record.LabelNode: cfg.NodeID})
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, drivers.ErrTaskNotFound
	}
	return found[0], nil
}

// resume watches a container again and rebuilds its lease.
func (d *Driver) resume(ctx context.Context, cfg *drivers.TaskConfig, c *runtime.Container, r record.Record) (*task, error) {
	status, err := c.Status(ctx)
	exit, seen := record.ExitOf(c.Labels)
	switch {
	case errors.Is(err, runtime.ErrNotFound) && seen:
		// The process's record is gone, its exit code is not.
	case err != nil:
		return nil, err
	case status.Running:
		lease := d.currentLease(r.Lease)
		lease.Phase = gpu.PhaseRunning
		if err := d.leases.Write(lease); err != nil {
			return nil, err
		}
		if err := c.EndSessions(ctx); err != nil {
			d.logger.Warn("exec sessions of an earlier process may still run", "task_id", cfg.ID, "error", err)
		}
		if err := d.recordTask(c, r); err != nil {
			return nil, err // an earlier release wrote none
		}
		return d.watch(cfg, c, r), nil
	default:
		exit = status.Exit
	}
	// Its first process has ended; the rest is still to be seen to.
	watch, t := d.newTask(cfg, c, r)
	d.work.start(func() { d.ended(watch, t, exit, nil) })
	return t, nil
}

// recordTask writes what must be known of a container while containerd is away.
func (d *Driver) recordTask(c *runtime.Container, r record.Record) error {
	env, err := d.configured()
	if err != nil {
		return err
	}
	return record.StoreIn(env.settings.StateDir).Write(record.Kept{Container: c.ID, Image: c.Image, Labels: c.Labels, Record: r})
}

// containersOf returns the containers of a task, also while containerd is away.
func (d *Driver) containersOf(taskID string) ([]*runtime.Container, error) {
	env, err := d.configured()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), awayTimeout)
	defer cancel()
	var found []*runtime.Container
	err = retryTransient(ctx, func() (err error) {
		found, err = env.runtime.Find(ctx, map[string]string{record.LabelTaskID: taskID})
		return err
	})
	if err == nil || !runtime.Transient(err) {
		return found, err
	}
	records, recordErr := record.StoreIn(env.settings.StateDir).OfTask(taskID)
	if recordErr != nil {
		return nil, errors.Join(err, recordErr)
	}
	if len(records) == 0 {
		return nil, err // it may still run
	}
	for _, r := range records {
		found = append(found, r.Unloaded(env.runtime))
	}
	return found, nil
}
