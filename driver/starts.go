package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/nomad/plugins/drivers"
)

// errStartStopped is the cause of a start that was canceled because its task is to
// stop.
var errStartStopped = errors.New("the task was stopped before it had started")

// startBook holds the starts that are under way, so that each can be canceled.
type startBook struct {
	mu     sync.Mutex
	flight map[string]*startInFlight // by task ID
}

type startInFlight struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	// done is closed when nothing of the start goes on.
	done chan struct{}
}

func newStartBook() *startBook { return &startBook{flight: map[string]*startInFlight{}} }

// begin records a start until done is called. Its context ends with the driver's and
// when the task is stopped.
func (b *startBook) begin(ctx context.Context, cfg *drivers.TaskConfig) (_ context.Context, done func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.flight[cfg.ID] != nil {
		return nil, nil, fmt.Errorf("task %q is being started already", cfg.ID)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	f := &startInFlight{ctx: ctx, cancel: cancel, done: make(chan struct{})}
	b.flight[cfg.ID] = f
	return ctx, func() {
		cancel(nil)
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.flight, cfg.ID)
		close(f.done)
	}, nil
}

// cancel ends the start of a task, where one is under way, and waits until nothing
// of it goes on or ctx ends. It reports whether there was one.
func (b *startBook) cancel(ctx context.Context, taskID string) (bool, error) {
	b.mu.Lock()
	f := b.flight[taskID]
	b.mu.Unlock()
	if f == nil {
		return false, nil
	}
	f.cancel(errStartStopped)
	select {
	case <-f.done:
		return true, nil
	case <-ctx.Done():
		return true, fmt.Errorf("the start of task %q is canceled and has not ended: %w", taskID, ctx.Err())
	}
}
