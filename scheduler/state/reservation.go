package state

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// Reserve keeps room free. A reservation that is known or over is left out.
func (tx *Tx) Reserve(r *record.Reservation) {
	if tx.reservations[r.ID] != nil || !tx.Now().Before(r.ExpiresAt) {
		return
	}
	tx.reservations[r.ID] = r
	tx.book(r.Usage)
	tx.version++
}

// Release gives a reservation's room back, and reports whether there was one.
func (tx *Tx) Release(id string) bool {
	if tx.reservations[id] == nil {
		return false
	}
	tx.unbook(id)
	delete(tx.reservations, id)
	tx.version++
	return true
}

// Reservation is what is kept free under an ID; nil: nothing.
func (r *Reader) Reservation(id string) *record.Reservation { return r.reservations[id] }

// Reservations lists those whose time is not up, by ID.
func (r *Reader) Reservations() []*record.Reservation {
	var list []*record.Reservation
	for _, id := range slices.Sorted(maps.Keys(r.reservations)) {
		if one := r.reservations[id]; r.Now().Before(one.ExpiresAt) {
			list = append(list, one)
		}
	}
	return list
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
func (tx *Tx) Claim(id string, key nomad.JobKey) { tx.reservations[id].ClaimedBy = key.String() }

// Unclaim takes a job's claim back.
func (tx *Tx) Unclaim(key nomad.JobKey) {
	for _, r := range tx.reservations {
		if r.ClaimedBy == key.String() {
			r.ClaimedBy = ""
			tx.book(r.Usage)
		}
	}
}

// hasClaim reports whether a job has claimed a reservation.
func (r *Reader) hasClaim(key nomad.JobKey) bool {
	for _, one := range r.reservations {
		if one.ClaimedBy == key.String() {
			return true
		}
	}
	return false
}

// IsReserved reports whether a usage is an unclaimed reservation.
func (r *Reader) IsReserved(u *place.Usage) bool {
	one := r.reservations[u.ID]
	return one != nil && one.ClaimedBy == ""
}

// AnyReserved reports whether an unclaimed reservation is kept.
func (r *Reader) AnyReserved() bool {
	for _, one := range r.reservations {
		if one.ClaimedBy == "" {
			return true
		}
	}
	return false
}

// ReservedNodes lists the nodes with an unclaimed reservation, in order.
func (r *Reader) ReservedNodes() []string {
	var nodes []string
	for _, one := range r.reservations {
		if one.ClaimedBy == "" {
			nodes = append(nodes, one.Usage.NodeID)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// ReservedUntil is when the last reservation on a node expires that no job has
// claimed; zero when there is none.
func (r *Reader) ReservedUntil(node string) time.Time {
	var until time.Time
	for _, one := range r.reservations {
		if one.ClaimedBy == "" && one.Usage.NodeID == node && one.ExpiresAt.After(until) {
			until = one.ExpiresAt
		}
	}
	return until
}
