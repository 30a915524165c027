// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// End kills what still runs of a container, its shim too, and deletes the record of
// its process; the container stays. It succeeds where there is nothing to end.
func (c *Container) End(ctx context.Context) error {
	hadRecord, err := c.deleteTask(ctx)
	if hadRecord || err != nil {
		return err
	}
	return c.runtime.killShim(ctx, c.ID)
}

// Remove deletes a container that was ended, and its snapshot. It succeeds where they are
// gone already. It asks containerd for each of them directly: the client's own methods
// look everything up again before every step.
func (c *Container) Remove(ctx context.Context) error {
	handle, err := c.handle(ctx)
	if errors.Is(err, ErrNotFound) {
		return c.runtime.removeSandbox(ctx, c.ID)
	}
	if err != nil {
		return err
	}
	info := infoOf(ctx, handle)
	if info.SnapshotKey != "" {
		if err := c.runtime.client.SnapshotService(info.Snapshotter).Remove(ctx, info.SnapshotKey); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete snapshot of container %s: %w", c.ID, err)
		}
	}
	if err := c.runtime.client.ContainerService().Delete(ctx, c.ID); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete container %s: %w", c.ID, err)
	}
	return c.runtime.removeSandbox(ctx, c.ID)
}

// shimLossNoticed is how long containerd may take to notice that a shim died and to
// clean up after it. After that, deleting fails, and is tried again later.
const shimLossNoticed = 10 * time.Second

// deleteTask deletes the record of a process, which is killed first where it
// still runs. It reports whether containerd had such a record: if not, nothing
// tells that nothing runs.
func (c *Container) deleteTask(ctx context.Context) (hadRecord bool, err error) {
	_, err = c.runtime.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: c.ID})
	switch err = errgrpc.ToNative(err); {
	case err == nil:
		return true, nil
	case errdefs.IsNotFound(err):
		return false, nil
	}
	if hadRecord, err = untilDeleted(ctx, c.killTask); err != nil {
		return false, fmt.Errorf("delete process of container %s: %w", c.ID, err)
	}
	return hadRecord, nil
}

// untilDeleted kills a process until its record is gone: by this, or because
// containerd noticed meanwhile that the shim died, and cleaned up.
func untilDeleted(ctx context.Context, kill func(context.Context) error) (hadRecord bool, err error) {
	for noticed := time.Now().Add(shimLossNoticed); ; {
		switch err := kill(ctx); {
		case err == nil:
			return true, nil
		case errdefs.IsNotFound(err):
			return false, nil
		case !errors.Is(lostShim(err), errShimLost) || time.Now().After(noticed):
			return false, err
		}
		select {
		case <-time.After(shimPause):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

func (c *Container) killTask(ctx context.Context) error {
	task, err := c.task(ctx)
	if err != nil {
		return err
	}
	_, err = task.Delete(ctx, client.WithProcessKill)
	return err
}
