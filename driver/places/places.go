// SPDX-License-Identifier: MPL-2.0

// Package places shares out what a node can do only a few times at once.
package places

import (
	"context"
	"sync"
)

// Places bounds how many do something at once: a namespace has half of the places at
// most, and a job a quarter. The others wait. Of a nil one there is no end.
type Places struct {
	mu sync.Mutex
	// limit is 0 for none.
	limit int
	total int
	taken map[string]int // by namespace, and by job
	// changed is closed, and replaced, when there may be a place for another.
	changed chan struct{}
}

// New returns places with a limit; 0 is no limit.
func New(limit int) *Places {
	return &Places{limit: limit, taken: map[string]int{}, changed: make(chan struct{})}
}

// SetLimit changes how many places there are.
func (p *Places) SetLimit(limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = limit
	p.wake()
}

// wake lets those that wait look for a place; the caller holds the lock.
func (p *Places) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Take waits for a place, and returns what gives it back.
func (p *Places) Take(ctx context.Context, namespace, job string) (give func(), err error) {
	if p == nil {
		return func() {}, nil
	}
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

// tryTake takes a place, or returns a channel that is closed when there may be one.
func (p *Places) tryTake(namespace, job string) <-chan struct{} {
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

// Taken is how many places are taken.
func (p *Places) Taken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}

func (p *Places) give(namespace, job string) {
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
