// SPDX-License-Identifier: MPL-2.0

package record

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

const reservations = "nomad-gpu/reservations/"

// Reservation is room that is kept free until a job claims it, its owner releases
// it, or its time is up.
type Reservation struct {
	Version   int         `json:"v"`
	ID        string      `json:"id"`
	Namespace string      `json:"namespace"`
	Owner     string      `json:"owner"` // who asked, for people
	Usage     place.Usage `json:"usage"`
	ExpiresAt time.Time   `json:"expires_at"`
	// ClaimedBy is the namespace/job that took it; empty until then.
	ClaimedBy string `json:"claimed_by,omitempty"`
}

// Create stores a new reservation.
func (r *Reservation) Create(ctx context.Context, s Store) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode reservation %q: %w", r.ID, err)
	}
	_, err = s.Put(ctx, nomad.Item{Path: reservations + r.ID, Values: map[string]string{"reservation": string(text)}})
	return err
}

// RemoveReservation deletes the record of a reservation that is over.
func RemoveReservation(ctx context.Context, s Store, id string) error {
	return removeItem(ctx, s, reservations+id)
}

// Reservations reads all that are stored. One that cannot be read is left out, and
// told to trouble.
func Reservations(ctx context.Context, s Store, trouble func(error)) ([]*Reservation, error) {
	paths, err := s.List(ctx, reservations)
	if err != nil {
		return nil, err
	}
	var list []*Reservation
	for path := range paths {
		item, err := s.Get(ctx, path)
		if err != nil {
			return nil, fmt.Errorf("load reservations: %w", err)
		}
		var r Reservation
		err = json.Unmarshal([]byte(item.Values["reservation"]), &r)
		if err == nil && r.Version != Version {
			err = fmt.Errorf("it has version %d, this release reads %d", r.Version, Version)
		}
		if err != nil {
			trouble(fmt.Errorf("read reservation %q: %w", path, err))
			continue
		}
		list = append(list, &r)
	}
	return list, nil
}
