package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// task is one container that this process watches until it ends.
type task struct {
	cfg       *drivers.TaskConfig
	container *runtime.Container
	record    record.Record
	logger    hclog.Logger
	// cancel ends the watch.
	cancel context.CancelFunc
	// sharedCores is where the cores stand that the driver keeps the task to, ""
	// for none; coresSeen is what it gave last, and belongs to cpusetLoop.
	sharedCores, coresSeen string
	// killed is set before the driver itself kills the task.
	killed atomic.Bool
	// own is what it has made of its share.
	own ownShare
	// saved is when its work was on disk.
	saved savedWork
	// sessions counts the commands that run in it beside its own.
	sessions atomic.Int64
	// done is closed when result and endedAt are set.
	done chan struct{}

	mu      sync.Mutex
	result  *drivers.ExitResult
	endedAt time.Time
	// verdict is why the watchdog killed the task.
	verdict error
}

// watch makes a task and waits for its end in the background.
func (d *Driver) watch(cfg *drivers.TaskConfig, c *runtime.Container, r record.Record) *task {
	ctx, t := d.newTask(cfg, c, r)
	go d.await(ctx, t)
	go d.serveSelf(ctx, t)
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

// retryDelay paces attempts, such as to reach a containerd that is away.
const retryDelay = time.Second

// pause waits between two attempts, and reports whether ctx lasts.
func pause(ctx context.Context, delay time.Duration) bool {
	select {
	case <-time.After(delay):
		return true
	case <-ctx.Done():
		return false
	}
}

// await waits for the container's end, through restarts of containerd.
func (d *Driver) await(ctx context.Context, t *task) {
	for {
		exit, err := t.container.Wait(ctx)
		switch {
		case err == nil:
			d.ended(ctx, t, exit, nil)
			return
		case ctx.Err() != nil:
			return
		case errors.Is(err, runtime.ErrNotFound):
			d.lost(ctx, t)
			return
		}
		t.logger.Debug("waiting for containerd", "error", err)
		if !pause(ctx, retryDelay) {
			return
		}
	}
}

// errLost is the result of a task whose process containerd no longer knows.
var errLost = errors.New("containerd lost the task's process, for instance because its shim died; the exit code is not known")

// lost handles a process that is gone without an exit that was seen.
func (d *Driver) lost(ctx context.Context, t *task) {
	if labels, err := t.container.CurrentLabels(ctx); err == nil {
		if exit, ok := record.ExitOf(labels); ok {
			d.ended(ctx, t, exit, nil)
			return
		}
	}
	d.ended(ctx, t, runtime.Exit{Code: 137, At: time.Now()}, errLost)
}

// ended records how a task ended: in its lease, for who waits, and in its
// container's labels, so that a restart of the driver or a reboot does not lose
// the exit code.
func (d *Driver) ended(ctx context.Context, t *task, exit runtime.Exit, problem error) {
	if exit.Code != 0 && !t.killed.Load() {
		exit.OOMKilled = exit.OOMKilled || t.container.OOMKilled(ctx)
	}
	if signal, died := diedOf(exit.Code); died && !t.killed.Load() {
		d.tellNeighbors(t, fmt.Sprintf("it ended by %s, which did not come from the driver", unix.SignalName(signal)))
	}
	// The shim's death, or a process ID namespace that others share, may leave
	// processes; none may use the GPU when the lease has ended.
	for {
		err := cgroups.Empty(ctx, cgroups.Of(t.record.Lease), cgroups.Unified())
		if err == nil {
			break
		}
		t.logger.Warn("an ended task keeps its lease until all its processes have ended", "error", err)
		if !pause(ctx, retryDelay) {
			return
		}
	}
	if err := d.leases.end(t.lease(), exit.At); err != nil {
		t.logger.Error("lease of an ended task stays live", "error", err)
	}
	t.finish(exit, problem)
	if err := t.container.SetLabels(ctx, record.ExitLabels(exit)); err != nil && !errors.Is(err, runtime.ErrNotFound) && ctx.Err() == nil {
		t.logger.Warn("exit code is not recorded with the container", "error", err)
	}
}

func (t *task) finish(exit runtime.Exit, problem error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.result != nil {
		return
	}
	if t.verdict != nil {
		problem = t.verdict
	}
	t.result = exitResult(exit, problem)
	var above violation
	t.result.OOMKilled = t.result.OOMKilled || errors.As(t.verdict, &above) && above.code == codeMemory
	t.endedAt = exit.At
	close(t.done)
}

// errOOM is the message of a task that the kernel killed at its memory limit, in
// the words of Nomad's docker driver: what looks for it there finds it here.
var errOOM = errors.New("OOM Killed")

// exitResult translates an exit. Containerd reports a process that a signal
// ended as 128 plus the signal, as a shell does.
func exitResult(exit runtime.Exit, problem error) *drivers.ExitResult {
	result := &drivers.ExitResult{ExitCode: exit.Code, OOMKilled: exit.OOMKilled, Err: problem}
	if exit.OOMKilled && problem == nil {
		result.Err = errOOM
	}
	if signal := exit.Code - 128; signal > 0 && signal <= 64 {
		result.Signal = signal
	}
	return result
}

// status is the task as InspectTask shows it.
func (t *task) status() *drivers.TaskStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	status := &drivers.TaskStatus{
		ID: t.cfg.ID, Name: t.cfg.Name, State: drivers.TaskStateRunning,
		StartedAt: t.record.StartedAt, CompletedAt: t.endedAt,
		DriverAttributes: map[string]string{"container_id": t.container.ID},
	}
	if t.result != nil {
		status.State, status.ExitResult = drivers.TaskStateExited, t.result.Copy()
	}
	for i, h := range t.record.Lease.Holdings {
		status.DriverAttributes[fmt.Sprintf("gpu.%d", i)] = h.UUID
	}
	return status
}

func (t *task) exited() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}
