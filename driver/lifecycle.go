package driver

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/moby/sys/signal"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// callTimeout bounds a single short request to containerd.
const callTimeout = 30 * time.Second

// WaitTask delivers the result of a task when it has one.
func (d *Driver) WaitTask(ctx context.Context, taskID string) (<-chan *drivers.ExitResult, error) {
	t, err := d.tasks.get(taskID)
	if err != nil {
		return nil, err
	}
	ch := make(chan *drivers.ExitResult)
	go func() {
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
	}()
	return ch, nil
}

// StopTask asks a task to end with a signal, and kills it when it has not ended
// after timeout. It returns when the task has ended. A task that is still being
// started does not start.
func (d *Driver) StopTask(taskID string, timeout time.Duration, signalName string) error {
	canceled, err := d.cancelStart(taskID)
	if err != nil {
		return err
	}
	t, err := d.tasks.get(taskID)
	if errors.Is(err, drivers.ErrTaskNotFound) {
		t, err = d.adoptUnknown(taskID)
	}
	if errors.Is(err, drivers.ErrTaskNotFound) && canceled {
		return nil
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

// cancelStart ends the start of a task, where one is under way, and waits for what it
// takes back. It reports whether there was one.
func (d *Driver) cancelStart(taskID string) (bool, error) {
	ctx, cancel := context.WithTimeout(d.ctx, startTimeout)
	defer cancel()
	return d.starts.cancel(ctx, taskID)
}

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
	case <-time.After(callTimeout):
		return fmt.Errorf("container %s has not ended %s after SIGKILL", t.container.ID, callTimeout)
	}
}

// killWithoutContainerd ends a task of which containerd cannot be asked.
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

// awayTimeout is how long what ends a task waits for a containerd that is away: long
// enough for one that is being restarted.
const awayTimeout = 10 * time.Second

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

// retryTransient repeats a call as long as containerd is away, or has not noticed that a
// shim died, and ctx lasts. It returns the last error.
func retryTransient(ctx context.Context, call func() error) error {
	for {
		err := call()
		if err == nil || !runtime.Transient(err) {
			return err
		}
		if !pause(ctx, retryDelay) {
			return err
		}
	}
}

// stopSignal is the job's kill_signal, else the image's, else SIGTERM.
func stopSignal(names ...string) (syscall.Signal, error) {
	for _, name := range names {
		if name == "" {
			continue
		}
		number, err := parseSignal(name)
		if err != nil {
			return 0, fmt.Errorf("stop %w", err)
		}
		return number, nil
	}
	return syscall.SIGTERM, nil
}

// parseSignal reads a signal's name or number.
func parseSignal(name string) (syscall.Signal, error) {
	number, err := signal.ParseSignal(name)
	if err != nil || !signal.ValidSignalForPlatform(number) {
		return 0, fmt.Errorf("signal %q is none: write a name such as \"SIGINT\", or its number", name)
	}
	return number, nil
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
