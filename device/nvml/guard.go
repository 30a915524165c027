package nvml

import (
	"errors"
	"sync"
	"time"
)

// errHangs means that a call did not come back in time, or that an earlier one
// still has not.
var errHangs = errors.New("NVML does not answer")

// guard bounds calls that can hang, one at a time per key.
type guard struct {
	timeout time.Duration
	mu      sync.Mutex
	stuck   map[string]<-chan struct{}
}

// call runs f and waits for its result for as long as the guard allows. After a
// call that hung, f is not run until that call has come back.
func call[T any](g *guard, key string, f func() T) (T, error) {
	var zero T
	if g.hangs(key) {
		return zero, errHangs
	}
	result, done := make(chan T, 1), make(chan struct{})
	go func() {
		defer close(done)
		result <- f()
	}()
	timer := time.NewTimer(g.timeout)
	defer timer.Stop()
	select {
	case r := <-result:
		return r, nil
	case <-timer.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stuck[key] = done
	return zero, errHangs
}

// hangs reports whether a call with this key is still out.
func (g *guard) hangs(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	done, ok := g.stuck[key]
	if !ok {
		return false
	}
	select {
	case <-done:
		delete(g.stuck, key)
		return false
	default:
		return true
	}
}
