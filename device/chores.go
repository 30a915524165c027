package device

import (
	"sync"
	"time"
)

// chores are things that are done to the hardware and can take long. Each runs
// in the background, one at a time per name, and its outcome is asked for by
// the engine's turns.
type chores struct {
	nudge func()
	now   func() time.Time

	mu    sync.Mutex
	all   map[string]*chore
	going sync.WaitGroup
}

// chore is the latest run of one chore.
type chore struct {
	running bool
	// input is what the run was for, ended when it ended and how.
	input string
	ended time.Time
	err   error
}

func newChores(nudge func(), now func() time.Time) *chores {
	return &chores{nudge: nudge, now: now, all: map[string]*chore{}}
}

// do runs f unless it runs already, or ran for the same input less than again
// ago. It reports whether the input is dealt with, and the error if that failed.
func (c *chores) do(name, input string, again time.Duration, f func() error) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.all[name]
	if last == nil {
		last = &chore{}
		c.all[name] = last
	}
	fresh := last.input == input && !last.ended.IsZero()
	if last.running {
		return false, last.errIf(fresh)
	}
	if fresh && c.now().Sub(last.ended) < again {
		return last.err == nil, last.err
	}
	last.running = true
	c.going.Go(func() {
		err := f()
		c.mu.Lock()
		last.running, last.input, last.err, last.ended = false, input, err, c.now()
		c.mu.Unlock()
		c.nudge()
	})
	return fresh && last.err == nil, last.errIf(fresh)
}

func (c *chore) errIf(fresh bool) error {
	if fresh {
		return c.err
	}
	return nil
}

// wait returns when nothing runs any more.
func (c *chores) wait() { c.going.Wait() }
