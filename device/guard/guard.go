// SPDX-License-Identifier: MPL-2.0

// Package guard bounds calls into drivers, which can hang: one that does costs its own
// device, and no other.
package guard

import (
	"errors"
	"sync"
	"time"
)

// ErrHangs means that a call did not come back in time, or that an earlier one
// still has not.
var ErrHangs = errors.New("the driver does not answer")

// Guard bounds calls that can hang.
type Guard struct {
	Timeout time.Duration
	mu      sync.Mutex
	// stuck counts the calls of each key that did not come back in time: calls
	// that were under way together can hang together.
	stuck map[string]int
}

// New makes one that waits for each call for as long.
func New(timeout time.Duration) *Guard {
	return &Guard{Timeout: timeout, stuck: map[string]int{}}
}

// Call runs f and waits for its result for as long as the guard allows. After a
// call that hung, no other with its key is begun until it has come back.
func Call[T any](g *Guard, key string, f func() T) (T, error) {
	return CallFor(g, key, g.Timeout, f)
}

// CallFor is Call with a time of its own.
func CallFor[T any](g *Guard, key string, longest time.Duration, f func() T) (T, error) {
	var zero T
	if g.hangs(key) {
		return zero, ErrHangs
	}
	result := make(chan T, 1)
	go func() { result <- f() }()
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case r := <-result:
		return r, nil
	case <-timer.C:
	}
	g.count(key, 1)
	go func() {
		<-result
		g.count(key, -1)
	}()
	return zero, ErrHangs
}

func (g *Guard) count(key string, change int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stuck[key] += change
}

// hangs reports whether a call with this key is still out.
func (g *Guard) hangs(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stuck[key] > 0
}
