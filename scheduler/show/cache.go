// SPDX-License-Identifier: MPL-2.0

package show

import (
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// freshness is how old a view may be. Drawing one of a large cluster costs
// milliseconds, and a page that many people watch asks often.
const freshness = 500 * time.Millisecond

// Cache keeps the newest view; it is a [view.Source].
type Cache struct {
	State *state.State
	// Leader is the address of the replica that decides, and whether this is it.
	Leader func() (address string, self bool)
	// Outage is that of the ledger, where there is one; nil: there is no ledger.
	Outage func() *view.LedgerOutage
	// Trouble is what of the configuration cannot be used; nil: none is known.
	Trouble func() []string
	// BatchQueues are Nomad's own; nil: none are known.
	BatchQueues func() []view.BatchQueue
	// Looks is told of looks, as long as it has room; nil: looks are not told.
	Looks chan<- struct{}

	mu      sync.Mutex
	latest  *view.Cluster
	version uint64
	drawn   time.Time
}

// View returns the newest view. It is drawn again when something changed, though not
// more often than freshness.
func (c *Cache) View() (*view.Cluster, error) {
	select {
	case c.Looks <- struct{}{}:
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest != nil && time.Since(c.drawn) < freshness {
		return c.latest, nil
	}
	var err error
	c.State.View(func(r *state.Reader) { err = c.draw(r) })
	if err != nil {
		return nil, err
	}
	c.drawn = time.Now()
	c.latest.Leader, c.latest.Leading = c.Leader()
	if c.Outage != nil {
		c.latest.Ledger = c.Outage()
	}
	if c.Trouble != nil {
		c.latest.Trouble = c.Trouble()
	}
	if c.BatchQueues != nil {
		c.latest.BatchQueues = c.BatchQueues()
	}
	return c.latest, nil
}

// draw replaces the view: it was handed out, and is not changed.
func (c *Cache) draw(r *state.Reader) error {
	if c.latest != nil && r.Version() == c.version {
		same := *c.latest
		same.At, same.Synced = r.Now(), r.Cluster.Synced()
		c.latest = &same
		return nil
	}
	next, err := Cluster(r)
	if err != nil {
		return err
	}
	c.latest, c.version = next, r.Version()
	return nil
}
