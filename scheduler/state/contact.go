// SPDX-License-Identifier: MPL-2.0

package state

import (
	"errors"
	"fmt"
	"time"
)

// contact is the state of the way to Nomad.
type contact struct {
	clock  clock
	index  uint64    // Nomad's, of the last change
	synced time.Time // when Nomad was last heard; zero: never
	lost   error     // why Nomad cannot be heard
}

// Heard notes that Nomad has spoken.
func (s *State) Heard() {
	s.Do(func(tx *Tx) { tx.Cluster.contact.synced, tx.Cluster.contact.lost = tx.Now(), nil })
}

// Lost notes why Nomad cannot be heard.
func (s *State) Lost(err error) {
	s.Do(func(tx *Tx) { tx.Cluster.contact.lost = err })
}

// ErrBlind is wrapped while the service has no view of the cluster.
var ErrBlind = errors.New("no view of the cluster")

// tooOld is how long Nomad may be silent before nothing can be decided any more.
const tooOld = time.Minute

// Ready says why nothing can be decided now.
func (c *contact) Ready() error {
	switch {
	case c.synced.IsZero() && c.lost != nil:
		return fmt.Errorf("%w: %w", ErrBlind, c.lost)
	case c.synced.IsZero():
		return fmt.Errorf("%w: Nomad has not answered yet", ErrBlind)
	case c.clock.Now().Sub(c.synced) > tooOld:
		return fmt.Errorf("%w: Nomad was last heard %s ago", ErrBlind, c.clock.Now().Sub(c.synced).Round(time.Second))
	}
	return nil
}

// Synced is when Nomad was last heard; zero: never.
func (c *contact) Synced() time.Time { return c.synced }

// Index is Nomad's, of the last change.
func (c *contact) Index() uint64 { return c.index }
