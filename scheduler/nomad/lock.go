// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// lockDelay is how long Nomad keeps a lock closed after its holder died, on
// top of the TTL: it covers a request of the old leader that is still on its
// way.
const lockDelay = 3 * time.Second

// margin is how long before its TTL a leader stops to trust its lock.
const margin = 3 * time.Second

// Lock is the leader lock: a Nomad Variable that one replica holds at a time.
//
// A lock does not fence: a leader that was paused could go on after it lost
// the lock. So Leading looks at the clock, the lock is not trusted for the
// last seconds of its TTL, and every write goes through compare-and-set.
type Lock struct {
	vars      *api.Variables
	namespace string
	path      string
	ttl       time.Duration
	address   string
	own       string // secret of this replica, by which it knows others while it leads

	mu     sync.Mutex
	id     string    // of the held lock; empty without
	until  time.Time // the lock is trusted
	leader string    // address of whoever holds it
	secret string    // and its secret
}

// NewLock makes the lock at a path. Address is where the other replicas reach
// this one.
func NewLock(c *api.Client, namespace, path, address string, ttl time.Duration) *Lock {
	return &Lock{vars: c.Variables(), namespace: namespace, path: path, ttl: ttl, address: address, own: rand.Text()}
}

// Takeover is how long it takes at most until another replica leads, once the one that leads has died:
// Nomad waits for twice the TTL, and for the lock's delay.
func (l *Lock) Takeover() time.Duration { return 2*l.ttl + lockDelay + l.ttl/6 }

// Leading reports whether this replica may decide now.
func (l *Lock) Leading() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.id != "" && time.Now().Before(l.until)
}

// Leader returns the address of the replica that leads, as far as known.
func (l *Lock) Leader() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leader
}

// Secret is what the replica that leads knows the others by; empty while it is not
// known. It lies beside the leader's address, where only replicas may read.
func (l *Lock) Secret() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.secret
}

// Run holds the lock whenever it can, until the context ends, and gives it
// back then. Changed is called, one call at a time, when this replica begins
// (true) and ceases (false) to lead.
func (l *Lock) Run(ctx context.Context, changed func(leading bool), failed func(error)) {
	leading := false
	tell := func(now bool) {
		if now != leading {
			leading = now
			changed(now)
		}
	}
	tick := time.NewTicker(l.ttl / 6)
	defer tick.Stop()
	for {
		if err := l.step(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
		tell(l.Leading())
		select {
		case <-ctx.Done():
			tell(false)
			l.release()
			return
		case <-tick.C:
		}
	}
}

// step acquires or renews once.
func (l *Lock) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.ttl/3)
	defer cancel()
	asked := time.Now()
	l.mu.Lock()
	id := l.id
	l.mu.Unlock()
	if id == "" {
		return l.acquire(ctx, asked)
	}
	_, _, err := l.vars.RenewLock(&api.Variable{Namespace: l.namespace, Path: l.path, Lock: &api.VariableLock{ID: id}}, l.write(ctx))
	switch {
	case err == nil:
		l.hold(id, asked)
		return nil
	case status(err) == http.StatusConflict || status(err) == http.StatusNotFound:
		l.lose()
		return l.acquire(ctx, asked)
	case time.Now().After(l.deadline()):
		l.lose()
	}
	return fmt.Errorf("renew leader lock: %w", err)
}

func (l *Lock) acquire(ctx context.Context, asked time.Time) error {
	v := &api.Variable{
		Namespace: l.namespace, Path: l.path, Items: api.VariableItems{"address": l.address, "secret": l.own},
		Lock: &api.VariableLock{TTL: l.ttl.String(), LockDelay: lockDelay.String()},
	}
	held, _, err := l.vars.AcquireLock(v, l.write(ctx))
	switch {
	case err == nil && held.Lock != nil:
		l.hold(held.Lock.ID, asked)
		return nil
	case err == nil:
		return errors.New("acquire leader lock: Nomad answered without a lock")
	case status(err) != http.StatusConflict:
		return fmt.Errorf("acquire leader lock: %w", err)
	}
	return l.learnLeader(ctx)
}

// learnLeader reads who holds the lock.
func (l *Lock) learnLeader(ctx context.Context) error {
	v, _, err := l.vars.Peek(l.path, (&api.QueryOptions{Namespace: l.namespace}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("read leader lock: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leader, l.secret = "", ""
	if v != nil {
		l.leader, l.secret = v.Items["address"], v.Items["secret"]
	}
	return nil
}

func (l *Lock) hold(id string, asked time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id, l.until, l.leader, l.secret = id, asked.Add(l.ttl-margin), l.address, l.own
}

func (l *Lock) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id, l.leader, l.secret = "", "", ""
}

func (l *Lock) deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

// release gives the lock back, so that the next leader need not wait.
func (l *Lock) release() {
	l.mu.Lock()
	id := l.id
	l.id = ""
	l.mu.Unlock()
	if id == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.ttl/3)
	defer cancel()
	// What fails here costs the next leader one TTL and nothing else.
	_, _, _ = l.vars.ReleaseLock(&api.Variable{Namespace: l.namespace, Path: l.path, Lock: &api.VariableLock{ID: id}}, l.write(ctx))
}

func (l *Lock) write(ctx context.Context) *api.WriteOptions {
	return (&api.WriteOptions{Namespace: l.namespace}).WithContext(ctx)
}

// status is the HTTP status of an error that Nomad answered, else 0.
func status(err error) int {
	var unexpected api.UnexpectedResponseError
	if errors.As(err, &unexpected) {
		return unexpected.StatusCode()
	}
	return 0
}
