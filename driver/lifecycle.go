// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// WaitTask delivers the result of a task when it has one.
func (d *Driver) WaitTask(ctx context.Context, taskID string) (<-chan *drivers.ExitResult, error) {
	t, err := d.tasks.get(taskID)
	if err != nil {
		return nil, err
	}
	ch := make(chan *drivers.ExitResult)
	d.work.start(func() {
		defer close(ch)
		select {
		case <-t.done:
		case <-ctx.Done():
			return
		case <-d.ctx.Done():
			return
		}
		select {
		case ch <- t.status().ExitResult:
		case <-ctx.Done():
		case <-d.ctx.Done():
		}
	})
	return ch, nil
}

// StopTask asks a task to end with a signal, and kills it when it has not ended
// after timeout. It returns when the task has ended.
func (d *Driver) StopTask(taskID string, timeout time.Duration, signalName string) error {
	t, err := d.tasks.get(taskID)
	if errors.Is(err, drivers.ErrTaskNotFound) {
		t, err = d.adoptUnknown(taskID)
	}
	if err != nil {
		return err
	}
	number, err := stopSignal(signalName, t.record.StopSignal)
	if err != nil {
		return err
	}
	if t.exited() {
		return nil
	}
	limit := time.After(timeout)
	t.killed.Store(number == syscall.SIGKILL)
	if number == syscall.SIGKILL {
		return d.kill(t)
	}
	if err := d.signal(t, number, false, max(timeout, awayTimeout)); err != nil && !runtime.Transient(err) {
		return err
	}
	select {
	case <-t.done:
		return nil
	case <-limit:
	}
	return d.kill(t)
}

// adoptUnknown takes up a task that this process does not know yet: Nomad may stop
// one while it still recovers others.
func (d *Driver) adoptUnknown(taskID string) (*task, error) {
	containers, err := d.containersOf(taskID)
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		r, err := record.Of(c)
		if err != nil {
			return nil, err
		}
		cfg := &drivers.TaskConfig{ID: taskID, AllocID: r.Lease.AllocID, Name: r.Lease.Task, NodeID: c.Labels[record.LabelNode]}
		ctx, cancel := context.WithTimeout(d.ctx, callTimeout)
		t, err := d.resume(ctx, cfg, c, r)
		cancel()
		if runtime.Transient(err) {
			return d.watch(cfg, c, r), nil // how it is comes out when containerd is back
		}
		if !errors.Is(err, runtime.ErrNotFound) {
			return t, err
		}
	}
	return nil, drivers.ErrTaskNotFound
}

// InspectTask shows a task as it is now.
func (d *Driver) InspectTask(taskID string) (*drivers.TaskStatus, error) {
	t, err := d.tasks.get(taskID)
	if err != nil {
		return nil, err
	}
	return t.status(), nil
}

// SignalTask sends a signal to a task's first process.
func (d *Driver) SignalTask(taskID string, name string) error {
	t, err := d.tasks.get(taskID)
	if err != nil {
		return err
	}
	number, err := parseSignal(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return retryTransient(ctx, func() error { return t.container.Signal(ctx, number, false) })
}
