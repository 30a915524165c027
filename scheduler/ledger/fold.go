// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"maps"
	"slices"
	"time"
)

// Fold makes entries of records. Records come in the order in which they were stored; a
// hold or an end that comes twice counts once. Each entry is handed over once, when it
// ended or at Close.
type Fold struct {
	from, to time.Time
	each     func(*Entry)
	open     map[Key]*Entry
	done     map[Key]bool
}

// NewFold folds what lies between two times. An entry that has not ended by then counts
// until the second, which must not lie in the future.
func NewFold(from, to time.Time, each func(*Entry)) *Fold {
	return &Fold{from, to, each, map[Key]*Entry{}, map[Key]bool{}}
}

// Add takes the next record.
func (f *Fold) Add(r *Record) {
	e := f.open[r.Key]
	switch {
	case r.Kind == KindHold && e == nil && r.Hold != nil && !f.done[r.Key]:
		f.open[r.Key] = &Entry{Key: r.Key, Hold: *r.Hold, From: r.At, Open: true}
	case e == nil:
	case r.Kind == KindUse && r.At.After(f.from) && !r.At.After(f.to):
		e.Compute.Merge(&r.Compute)
		e.Memory.Merge(&r.Memory)
	case r.Kind == KindEnd:
		delete(f.open, r.Key)
		f.done[r.Key] = true
		if !r.At.After(f.to) {
			e.Open, e.Why = false, r.Why
		}
		e.To = r.At
		f.hand(e)
	}
}

// Close hands over entries that have not ended.
func (f *Fold) Close() {
	for _, key := range slices.SortedFunc(maps.Keys(f.open), Key.Compare) {
		e := f.open[key]
		e.To = f.to
		f.hand(e)
	}
	clear(f.open)
}

// hand cuts an entry to the time that is asked about, and hands over the rest.
func (f *Fold) hand(e *Entry) {
	if e.From.Before(f.from) {
		e.From = f.from
	}
	if e.To.After(f.to) {
		e.To = f.to
	}
	if e.To.After(e.From) {
		f.each(e)
	}
}
