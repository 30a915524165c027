// SPDX-License-Identifier: MPL-2.0

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

	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
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
	// for none; coresSeen is its last content, and belongs to cpusetLoop.
	sharedCores, coresSeen string
	// killed is set before the driver itself kills the task.
	killed atomic.Bool
	// own is the task's own choice within its share.
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

// markKilled makes the task's result say why it was killed. It reports whether the
// kill is the caller's to do, because none is under way.
func (t *task) markKilled(reason error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.verdict != nil {
		return false
	}
	t.verdict = reason
	return true
}

// clearKilled takes back what markKilled said of a task that was not killed after all.
func (t *task) clearKilled() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.verdict = nil
}

// ownShare is what a task has made of the share that it was started with.
type ownShare struct {
	// mu is held while it is changed; last is when that was tried.
	mu   sync.Mutex
	last time.Time
	// holdings are nil while they are those of its record.
	holdings atomic.Pointer[[]gpu.Holding]
}

// lease is the task's lease with the share that it has now.
func (t *task) lease() gpu.Lease {
	l := t.record.Lease
	if now := t.own.holdings.Load(); now != nil {
		l.Holdings = *now
	}
	return l
}
