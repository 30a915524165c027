// SPDX-License-Identifier: MPL-2.0

package driver

import "sync"

// work is what a driver does besides what Nomad waits for. It can write state files,
// remove containers and end leases, so a driver that has been shut down must have none left:
// the next one works in the same places.
type work struct {
	mu      sync.Mutex
	running int
	ended   *sync.Cond
}

func newWork() *work {
	w := &work{}
	w.ended = sync.NewCond(&w.mu)
	return w
}

// start runs f beside the caller. f ends soon after the driver's context.
func (w *work) start(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running++
	go func() {
		defer w.end()
		f()
	}()
}

func (w *work) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	w.ended.Broadcast()
}

// wait returns when nothing runs.
func (w *work) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.running > 0 {
		w.ended.Wait()
	}
}
