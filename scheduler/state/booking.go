// SPDX-License-Identifier: MPL-2.0

package state

import (
	"iter"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// book enters a usage that is a fact or a promise.
func (tx *Tx) book(u place.Usage) {
	if err := tx.Capacity.books.enter(&u); err != nil {
		tx.trouble(err)
	}
}

// unbook takes the usage with an ID off the books, if there is one.
func (tx *Tx) unbook(id string) {
	if err := tx.Capacity.books.strike(id); err != nil {
		tx.trouble(err)
	}
}

// rebook enters again what a usage ID stands for.
func (tx *Tx) rebook(id string) {
	switch {
	case tx.Capacity.promise(id) != nil:
		tx.book(tx.Capacity.promise(id).Usage)
	case tx.Cluster.Alloc(id) != nil:
		tx.book(tx.usageOf(tx.Cluster.Alloc(id)))
	case tx.Capacity.Reservation(id) != nil:
		tx.book(tx.Capacity.Reservation(id).Usage)
	}
}

// rebookAlloc books an alloc again: it counts for something else now.
func (tx *Tx) rebookAlloc(a *nomad.Alloc) {
	tx.unbook(a.ID)
	tx.book(tx.usageOf(a))
}

// rebookJob books a job's allocs again: what they count for, or whether they may be
// evicted, is different now.
func (tx *Tx) rebookJob(key nomad.JobKey) {
	for _, a := range tx.Cluster.allocs.sortedOf(key) {
		tx.rebookAlloc(a)
	}
}

// rebookGroup books the siblings of an alloc again.
func (tx *Tx) rebookGroup(of *nomad.Alloc) {
	for _, a := range tx.Cluster.allocs.sortedOf(of.Key()) {
		if a.Group == of.Group {
			tx.rebookAlloc(a)
		}
	}
}

// rebookQueue books the allocs of a queue again.
func (tx *Tx) rebookQueue(queue string) {
	for _, claim := range slices.Clone(tx.Capacity.books.snap.Claims(queue)) {
		if a := tx.Cluster.Alloc(claim.ID); a != nil {
			tx.rebookAlloc(a)
		}
	}
}

// rebookAll books all allocs again, after queues changed.
func (tx *Tx) rebookAll() {
	for _, id := range tx.Cluster.NodeIDs() {
		for _, u := range tx.Capacity.UsagesOn(id) {
			if a := tx.Cluster.Alloc(u.ID); a != nil {
				tx.rebookAlloc(a)
			}
		}
	}
}

// Without takes some allocs off the books. The result puts them back.
func (tx *Tx) Without(allocs iter.Seq[*nomad.Alloc]) (restore func()) {
	var off []*nomad.Alloc
	for a := range allocs {
		if _, booked := tx.Capacity.Usage(a.ID); booked {
			off = append(off, a)
			tx.unbook(a.ID)
		}
	}
	slices.SortFunc(off, func(x, y *nomad.Alloc) int { return strings.Compare(x.ID, y.ID) })
	return func() {
		for _, a := range off {
			tx.book(tx.usageOf(a))
		}
	}
}
