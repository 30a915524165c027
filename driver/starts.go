// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/places"
)

// errStartStopped is the cause of a start that was canceled because its task is no longer
// wanted.
var errStartStopped = errors.New("the task was stopped before it had started")

var (
	errClientGone = fmt.Errorf("%w: the Nomad client that asked for it is gone", errStartStopped)
	errSuperseded = fmt.Errorf("%w: Nomad starts it again", errStartStopped)
)

// maxPulls is how many tasks may be fetching images at once. What a pull keeps in memory
// is not bounded by Nomad.
const maxPulls = 32

// startBook holds the starts that are under way, so that each can be canceled.
type startBook struct {
	mu      sync.Mutex
	flight  map[string]*startInFlight  // by task ID
	callers map[string]context.Context // of requests for a start, by task ID
	// room is for starts that are at work, pulls for those that fetch an image meanwhile.
	room, pulls *places.Places
}

type startInFlight struct {
	alloc, task string
	began       time.Time
	ctx         context.Context
	cancel      context.CancelCauseFunc
	// done is closed when nothing of the start goes on.
	done chan struct{}
	// leave gives its place among those at work back; nil while it has none.
	leave func()
}

func newStartBook() *startBook {
	return &startBook{flight: map[string]*startInFlight{}, callers: map[string]context.Context{}, room: places.New(0), pulls: places.New(maxPulls)}
}

// calledBy says for whom a task is started, until over is called: the start ends with
// the caller's context.
func (b *startBook) calledBy(caller context.Context, taskID string) (over func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.callers[taskID] = caller
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.callers, taskID)
	}
}

// begin records a start until done is called. Its context ends with the driver's, with the
// caller's, and when the task is no longer wanted. An earlier start of the task, for which
// a client asked that has died since, ends first: it has another ID.
func (b *startBook) begin(ctx context.Context, cfg *drivers.TaskConfig) (_ context.Context, done func(), err error) {
	for {
		b.mu.Lock()
		if b.flight[cfg.ID] != nil {
			b.mu.Unlock()
			return nil, nil, fmt.Errorf("task %q is being started already", cfg.ID)
		}
		earlier := b.earlier(cfg)
		if earlier == nil {
			defer b.mu.Unlock()
			ctx, done := b.add(ctx, cfg)
			return ctx, done, nil
		}
		b.mu.Unlock()
		earlier.cancel(errSuperseded)
		select {
		case <-earlier.done:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// earlier finds a start of the same task; the caller holds the lock.
func (b *startBook) earlier(cfg *drivers.TaskConfig) *startInFlight {
	for _, f := range b.flight {
		if cfg.AllocID != "" && f.alloc == cfg.AllocID && f.task == cfg.Name {
			return f
		}
	}
	return nil
}

// add records a start; the caller holds the lock.
func (b *startBook) add(ctx context.Context, cfg *drivers.TaskConfig) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	f := &startInFlight{alloc: cfg.AllocID, task: cfg.Name, began: time.Now(), ctx: ctx, cancel: cancel, done: make(chan struct{})}
	b.flight[cfg.ID] = f
	ignore := func() bool { return true }
	if caller := b.callers[cfg.ID]; caller != nil {
		ignore = context.AfterFunc(caller, func() { cancel(errClientGone) })
	}
	return ctx, func() {
		ignore()
		cancel(nil)
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.flight, cfg.ID)
		close(f.done)
	}
}

// since returns the starts that began before a time.
func (b *startBook) since(before time.Time) []*startInFlight {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*startInFlight
	for _, f := range b.flight {
		if f.began.Before(before) {
			all = append(all, f)
		}
	}
	return all
}

// enter waits until a start may be at work.
func (b *startBook) enter(ctx context.Context, cfg *drivers.TaskConfig) error {
	leave, err := b.room.Take(ctx, cfg.Namespace, cfg.JobID)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.flight[cfg.ID]; f != nil {
		f.leave = leave
		return nil
	}
	leave() // it is no start of Nomad's
	return nil
}

// leave lets others work, while a start waits for something slow, or when it is over.
func (b *startBook) leave(cfg *drivers.TaskConfig) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.flight[cfg.ID]; f != nil && f.leave != nil {
		f.leave()
		f.leave = nil
	}
}

// aside lets others work while a start waits for something, and has it wait until it may
// go on.
func (b *startBook) aside(ctx context.Context, cfg *drivers.TaskConfig, wait func() error) error {
	b.leave(cfg)
	if err := wait(); err != nil {
		return err
	}
	return b.enter(ctx, cfg)
}
