// SPDX-License-Identifier: MPL-2.0

package leader

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/show"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Reserve finds room for a want and keeps it until it is claimed, released or
// its time is up.
func (d *Decider) Reserve(ctx context.Context, w reserve.Want, dryRun bool) (view.Hold, error) {
	if !dryRun && !d.leading() {
		return view.Hold{}, fmt.Errorf("reserve %s: %w", w.Request, ErrNotLeading)
	}
	var one *record.Reservation
	var hold view.Hold
	err := d.state.Update(func(tx *state.Tx) (err error) {
		if one, err = decide.Reservation(tx, w, "r-"+strings.ToLower(rand.Text()[:12])); err != nil {
			return err
		}
		hold = show.Reservation(&tx.Reader, one)
		if !dryRun {
			tx.Reserve(one)
		}
		return nil
	})
	if err != nil {
		return view.Hold{}, err
	}
	if dryRun {
		hold.ID = ""
		return hold, nil
	}
	if err := one.Create(ctx, d.store); err != nil {
		d.release(one.ID)
		return view.Hold{}, err
	}
	return hold, nil
}

// Held returns a reservation as it is now: a published view may be older than the
// answer to whoever made it.
func (d *Decider) Held(id string) (view.Hold, error) {
	for _, h := range d.All() {
		if h.ID == id {
			return h, nil
		}
	}
	return view.Hold{}, fmt.Errorf("reservation %q: %w", id, reserve.ErrNotFound)
}

// All lists the reservations as they are now, by ID.
func (d *Decider) All() (list []view.Hold) {
	d.state.View(func(r *state.Reader) { list = show.Reservations(r) })
	return list
}

// Release gives a reservation back.
func (d *Decider) Release(ctx context.Context, id string) error {
	if !d.leading() {
		return fmt.Errorf("release reservation %q: %w", id, ErrNotLeading)
	}
	if !d.release(id) {
		return fmt.Errorf("release %q: %w", id, reserve.ErrNotFound)
	}
	return record.RemoveReservation(ctx, d.store, id)
}

func (d *Decider) release(id string) (found bool) {
	d.state.Do(func(tx *state.Tx) { found = tx.Release(id) })
	return found
}

// Expire ends promises that will no longer be kept, and reservations whose time
// is up.
func (d *Decider) Expire(ctx context.Context) error {
	var gone []*record.Reservation
	d.state.Do(func(tx *state.Tx) { gone = tx.Expire() })
	for i, r := range gone {
		if err := record.RemoveReservation(ctx, d.store, r.ID); err != nil {
			return fmt.Errorf("%d of %d expired: %w", len(gone)-i, len(gone), err)
		}
	}
	return nil
}
