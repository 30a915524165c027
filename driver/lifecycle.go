package driver

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/moby/sys/signal"

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
	t.killed.Store(number == syscall.SIGKILL)
	if err := d.signal(t, number, false); err != nil {
		return err
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-t.done:
		return nil
	case <-timer.C:
	}
	return d.kill(t)
}

// cancelStart ends the start of a task, where one is under way, and waits for what it
// takes back. It reports whether there was one.
func (d *Driver) cancelStart(taskID string) (bool, error) {
	ctx, cancel := context.WithTimeout(d.ctx, startTimeout)
	defer cancel()
	return d.starts.cancel(ctx, taskID)
}

// kill ends a task for certain.
func (d *Driver) kill(t *task) error {
	t.killed.Store(true)
	if err := d.signal(t, syscall.SIGKILL, true); err != nil {
		return err
	}
	timer := time.NewTimer(callTimeout)
	defer timer.Stop()
	select {
	case <-t.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("container %s has not ended %s after SIGKILL", t.container.ID, callTimeout)
	}
}

// signal sends a signal; a process that is gone already is no error. It waits for
// a containerd that is being restarted.
func (d *Driver) signal(t *task, number syscall.Signal, all bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
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

// DestroyTask removes what is left of a task. With force it ends the task
// first, also one that is still being started, and finds its container by label when
// this process does not know it.
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
		err = d.destroyUnknown(taskID, force)
		if canceled && errors.Is(err, drivers.ErrTaskNotFound) {
			return nil
		}
		return err
	}
	if !t.exited() {
		if !force {
			return fmt.Errorf("task %q still runs; destroying it needs force", taskID)
		}
		if err := d.kill(t); err != nil {
			return err
		}
	}
	if err := d.remove(t.container); err != nil {
		t.abandoned.Store(true)
		return err
	}
	t.cancel()
	d.tasks.remove(taskID)
	return nil
}

func (d *Driver) destroyUnknown(taskID string, force bool) error {
	n, err := d.configured()
	if err != nil || !force {
		return drivers.ErrTaskNotFound
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	found, err := n.runtime.Find(ctx, map[string]string{labelTaskID: taskID})
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return drivers.ErrTaskNotFound
	}
	for _, c := range found {
		if err := d.removeWithLease(c); err != nil {
			return err
		}
	}
	return nil
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
