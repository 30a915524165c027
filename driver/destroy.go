package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// DestroyTask removes what is left of a task. With force it ends the task
// first, also one that is still being started, and finds its container by label when
// this process does not know it.
//
// Nomad asks once, and then gives the task's GPU to another, whatever the answer. So
// what cannot be removed now is killed all the same, keeps its lease, and is removed
// later, by this process or the next.
func (d *Driver) DestroyTask(taskID string, force bool) error {
	canceled := false
	if force {
		var err error
		if canceled, err = d.cancelStart(taskID); err != nil {
			return err
		}
	}
	t, err := d.tasks.get(taskID)
	if err != nil {
		if !force {
			return err
		}
		err = d.destroyUnknown(taskID)
		if canceled && errors.Is(err, drivers.ErrTaskNotFound) {
			return nil
		}
		return err
	}
	if !t.exited() && !force {
		return fmt.Errorf("task %q still runs; destroying it needs force", taskID)
	}
	if !t.exited() {
		err = d.kill(t)
	}
	if err == nil {
		err = d.remove(t.container)
	}
	t.cancel()
	d.tasks.remove(taskID)
	if err != nil {
		d.removeLater(t.container, err)
	}
	return err
}

// destroyUnknown removes the containers of a task that this process does not know:
// those that containerd knows or, while it is away, those of which there is a record.
func (d *Driver) destroyUnknown(taskID string) error {
	containers, err := d.containersOf(taskID)
	if err != nil {
		return err
	}
	if len(containers) == 0 {
		return drivers.ErrTaskNotFound
	}
	var problems []error
	for _, c := range containers {
		if err := d.removeWithLease(c); err != nil {
			d.removeLater(c, err)
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
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
	return d.leases.end(r.Lease, time.Now())
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
	go func() {
		for delay := firstRemoveDelay; pause(d.ctx, delay); delay = min(2*delay, lastRemoveDelay) {
			if err := d.removeWithLease(c); err == nil {
				d.logger.Info("a container that could not be removed before is removed", "container", c.ID)
				return
			}
		}
	}()
}

// removeDestroyed takes up what an earlier process could not remove, before any task
// is started or recovered: nothing of it may run, whoever was away meanwhile.
func (d *Driver) removeDestroyed(env environment) {
	records, err := record.StoreIn(env.settings.StateDir).Find(func(t record.Kept) bool { return t.Destroyed })
	if err != nil {
		d.logger.Warn("not all records of tasks can be read", "error", err)
	}
	for _, r := range records {
		c := r.Unloaded(env.runtime)
		ctx, cancel := context.WithTimeout(d.ctx, killPatience)
		err := cgroups.Empty(ctx, record.Cgroup(env.settings.Namespace, c), cgroups.Unified())
		cancel()
		d.removeLater(c, errors.Join(errDestroyedBefore, err))
	}
}

// killPatience is how long a new process of the driver waits for the end of what it
// kills before anything else.
const killPatience = 2 * time.Second

// errDestroyedBefore is why a container is removed that this process never knew.
var errDestroyedBefore = errors.New("its task was destroyed while it could not be removed")
