// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"sync"
)

// turns lets the submissions of one job go one after the other, from the
// decision to Nomad's answer: two people who run the same job at once both get
// an answer, and the second one's is about what the first one left.
type turns struct {
	mu   sync.Mutex
	jobs map[string]*turn
}

// turn is one job's; its channel holds a token while a turn lasts.
type turn struct {
	taken   chan struct{}
	waiting int
}

func newTurns() *turns { return &turns{jobs: map[string]*turn{}} }

// take waits for a job's turn and returns what ends it.
func (t *turns) take(ctx context.Context, job string) (done func(), err error) {
	t.mu.Lock()
	one := t.jobs[job]
	if one == nil {
		one = &turn{taken: make(chan struct{}, 1)}
		t.jobs[job] = one
	}
	one.waiting++
	t.mu.Unlock()
	select {
	case one.taken <- struct{}{}:
		return func() { <-one.taken; t.leave(job, one) }, nil
	case <-ctx.Done():
		t.leave(job, one)
		return nil, ctx.Err()
	}
}

// leave forgets a job that no request waits for.
func (t *turns) leave(job string, one *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one.waiting--; one.waiting == 0 {
		delete(t.jobs, job)
	}
}
