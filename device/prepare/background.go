// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"sync"
	"time"
)

// retryInterval is how long after a job ended it is done again: a failed one may succeed,
// and a GPU that was reset has forgotten its settings.
const retryInterval = time.Minute

// background does slow work on the hardware. Each job runs alone under
// its name, and each pass asks for its outcome.
type background struct {
	wake func()
	now  func() time.Time

	mu    sync.Mutex
	jobs  map[string]*backgroundJob
	going sync.WaitGroup
}

// backgroundJob is the latest run of one job.
type backgroundJob struct {
	running bool
	// input is what the run was for, ended when it ended and how.
	input string
	ended time.Time
	err   error
}

func newBackground(wake func(), now func() time.Time) *background {
	return &background{wake: wake, now: now, jobs: map[string]*backgroundJob{}}
}

// do runs f unless it runs already, or ran for the same input less than again
// ago. It reports whether the input is dealt with, and the error if that failed.
func (b *background) do(name, input string, again time.Duration, f func() error) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.jobs[name]
	if last == nil {
		last = &backgroundJob{}
		b.jobs[name] = last
	}
	fresh := last.input == input && !last.ended.IsZero()
	if last.running {
		return false, last.errIf(fresh)
	}
	if fresh && b.now().Sub(last.ended) < again {
		return last.err == nil, last.err
	}
	last.running = true
	b.going.Go(func() {
		err := f()
		b.mu.Lock()
		last.running, last.input, last.err, last.ended = false, input, err, b.now()
		b.mu.Unlock()
		b.wake()
	})
	return fresh && last.err == nil, last.errIf(fresh)
}

// forget drops the outcome of a job, so that it can be asked for again.
func (b *background) forget(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.jobs, name)
}

func (j *backgroundJob) errIf(fresh bool) error {
	if fresh {
		return j.err
	}
	return nil
}

// wait returns when nothing runs any more.
func (b *background) wait() { b.going.Wait() }
