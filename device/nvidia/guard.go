package nvidia

import (
	"errors"
	"sync"
	"time"
)

// errHangs means that a call did not come back in time, or that an earlier one
// still has not.
var errHangs = errors.New("NVML does not answer")

// guard bounds calls that can hang.
type guard struct {
	timeout time.Duration
	mu      sync.Mutex
	// stuck counts the calls of each key that did not come back in time: calls
	// that were under way together can hang together.
	stuck map[string]int
}

// call runs f and waits for its result for as long as the guard allows. After a
// call that hung, no other with its key is begun until it has come back.
func call[T any](g *guard, key string, f func() T) (T, error) {
	var zero T
	if g.hangs(key) {
		return zero, errHangs
	}
	result := make(chan T, 1)
	go func() { result <- f() }()
	timer := time.NewTimer(g.timeout)
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
	return zero, errHangs
}

func (g *guard) count(key string, change int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stuck[key] += change
}

// hangs reports whether a call with this key is still out.
func (g *guard) hangs(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stuck[key] > 0
}
