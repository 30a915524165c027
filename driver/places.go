package driver

import (
	"context"
	"sync"
)

// places bounds how many do something at once: a namespace has half of the places at
// most, and a job a quarter. The others wait.
type places struct {
	mu sync.Mutex
	// limit is 0 for none.
	limit int
	total int
	taken map[string]int // by namespace, and by job
	// changed is closed, and replaced, when there may be a place for another.
	changed chan struct{}
}

func newPlaces(limit int) *places {
	return &places{limit: limit, taken: map[string]int{}, changed: make(chan struct{})}
}

func (p *places) setLimit(limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = limit
	p.wake()
}

// wake lets those that wait look for a place; the caller holds the lock.
func (p *places) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// take waits for a place, and returns what gives it back.
func (p *places) take(ctx context.Context, namespace, job string) (give func(), err error) {
	job = namespace + "/" + job // no namespace has a slash in its name
	for {
		changed := p.tryTake(namespace, job)
		if changed == nil {
			return sync.OnceFunc(func() { p.give(namespace, job) }), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryTake takes a place, or returns what is closed when there may be one.
func (p *places) tryTake(namespace, job string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit > 0 && (p.total >= p.limit || p.taken[namespace] >= max(1, p.limit/2) || p.taken[job] >= max(1, p.limit/4)) {
		return p.changed
	}
	p.total++
	p.taken[namespace]++
	p.taken[job]++
	return nil
}

func (p *places) give(namespace, job string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total--
	for _, of := range []string{namespace, job} {
		if p.taken[of]--; p.taken[of] == 0 {
			delete(p.taken, of)
		}
	}
	p.wake()
}
