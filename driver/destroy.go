// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
)

// DestroyTask removes the rest of a task. It ends the task first, as Nomad has it where a stop
// failed, and finds its container by label when this process does not know it. Nomad always
// forces.
//
// Nomad asks once, and then gives the task's GPU to another, whatever the answer. So
// what cannot be removed now is killed all the same, keeps its lease, and is removed
// later, by this process or the next.
func (d *Driver) DestroyTask(taskID string, _ bool) error {
	t, err := d.tasks.get(taskID)
	if err != nil {
		return d.destroyUnknown(taskID)
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
// those that containerd knows or, while it is away, those with a record.
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

// killPatience is how long a new process of the driver waits for the end of the tasks that it
// kills before anything else.
const killPatience = 2 * time.Second

// errDestroyedBefore is why a container is removed that this process never knew.
var errDestroyedBefore = errors.New("its task was destroyed while it could not be removed")
