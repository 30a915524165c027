// SPDX-License-Identifier: MPL-2.0

package state

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// reservations are what room is kept free for.
type reservations struct {
	clock clock
	byID  map[string]*record.Reservation
}

func newReservations(c clock) *reservations {
	return &reservations{clock: c, byID: map[string]*record.Reservation{}}
}

func (l *reservations) put(r *record.Reservation) { l.byID[r.ID] = r }

func (l *reservations) remove(id string) { delete(l.byID, id) }

// on lists the unclaimed reservations on a node, by ID.
func (l *reservations) on(node string) []*record.Reservation {
	return slices.DeleteFunc(byID(l.byID), func(r *record.Reservation) bool {
		return r.Usage.NodeID != node || r.ClaimedBy != ""
	})
}

// Reservation is the room kept free under an ID; nil: none.
func (l *reservations) Reservation(id string) *record.Reservation { return l.byID[id] }

// Reservations lists all, by ID. One whose time is up is kept until [Tx.Expire].
func (l *reservations) Reservations() []*record.Reservation { return byID(l.byID) }

// lasts reports whether the time of a reservation is not up.
func (l *reservations) lasts(r *record.Reservation) bool { return l.clock.Now().Before(r.ExpiresAt) }

// over lists those whose time is up, in no order.
func (l *reservations) over() []*record.Reservation {
	var list []*record.Reservation
	for _, one := range l.byID {
		if !l.lasts(one) {
			list = append(list, one)
		}
	}
	return list
}

// claimedBy lists those that a job has claimed, in no order.
func (l *reservations) claimedBy(key nomad.JobKey) []*record.Reservation {
	var list []*record.Reservation
	for _, one := range l.byID {
		if one.ClaimedBy == key.String() {
			list = append(list, one)
		}
	}
	return list
}

// Reserve keeps room free. A reservation that is known or over is left out.
func (tx *Tx) Reserve(r *record.Reservation) {
	if tx.Capacity.Reservation(r.ID) != nil || !tx.Capacity.reservations.lasts(r) {
		return
	}
	tx.Capacity.reservations.put(r)
	tx.book(r.Usage)
	tx.version++
}

// Release gives a reservation's room back, and reports whether there was one.
func (tx *Tx) Release(id string) bool {
	if tx.Capacity.Reservation(id) == nil {
		return false
	}
	tx.unbook(id)
	tx.Capacity.reservations.remove(id)
	tx.version++
	return true
}

// Open takes a reservation off the books, so that its room and its charge count for
// a claim alone. The result puts it back, unless it was claimed meanwhile.
func (tx *Tx) Open(r *record.Reservation) (closed func()) {
	tx.unbook(r.ID)
	return func() {
		if r.ClaimedBy == "" {
			tx.book(r.Usage)
		}
	}
}

// Claim gives the room of an open reservation to a job.
func (tx *Tx) Claim(id string, key nomad.JobKey) {
	tx.Capacity.Reservation(id).ClaimedBy = key.String()
}

// Unclaim takes a job's claim back.
func (tx *Tx) Unclaim(key nomad.JobKey) {
	for _, r := range tx.Capacity.reservations.claimedBy(key) {
		r.ClaimedBy = ""
		tx.book(r.Usage)
	}
}
