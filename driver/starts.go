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
	// limit is how many may be at work at once, of one job a quarter of them: the
	// others wait. 0 is no limit.
	limit  int
	atWork map[string]int // by job
	total  int
	// changed is closed, and replaced, when there may be room for another.
	changed chan struct{}
}

type startInFlight struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	// done is closed when nothing of the start goes on.
	done chan struct{}
	// release gives its place among those at work back; nil before it has one.
	release func()
}

func newStartBook() *startBook {
	return &startBook{flight: map[string]*startInFlight{}, atWork: map[string]int{}, changed: make(chan struct{})}
}

// setLimit changes how many starts may be at work.
func (b *startBook) setLimit(limit int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit = limit
	b.wake()
}

// wake lets those that wait look for room; the caller holds the lock.
func (b *startBook) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// admit waits until there is room for a start of a job, and returns what gives the
// room back.
func (b *startBook) admit(ctx context.Context, cfg *drivers.TaskConfig) (release func(), err error) {
	job := cfg.Namespace + "/" + cfg.JobID
	for {
		b.mu.Lock()
		if b.limit == 0 || b.total < b.limit && b.atWork[job] < max(1, b.limit/4) {
			b.total++
			b.atWork[job]++
			release = sync.OnceFunc(func() { b.leave(job) })
			if f := b.flight[cfg.ID]; f != nil {
				f.release = release
			}
			b.mu.Unlock()
			return release, nil
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// makeWay lets other starts work while one waits for something that may take long.
func (b *startBook) makeWay(taskID string) {
	b.mu.Lock()
	f := b.flight[taskID]
	b.mu.Unlock()
	if f != nil && f.release != nil {
		f.release()
	}
}

func (b *startBook) leave(job string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total--
	if b.atWork[job]--; b.atWork[job] == 0 {
		delete(b.atWork, job)
	}
	b.wake()
}

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
