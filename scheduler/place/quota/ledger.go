// SPDX-License-Identifier: MPL-2.0

package quota

import (
	"cmp"
	"slices"
	"time"
)

// Claim is what one piece of work holds of its queue's quota.
type Claim struct {
	ID       string
	Queue    string // empty: none pays
	Priority int
	Start    time.Time // zero: not started yet
	Charge   Charge

	seq int64 // order of booking
}

// earlier orders by age: started work, by its start, then work that has
// not started; of equals the one booked first.
func earlier(a, b *Claim) int {
	return cmp.Or(compareBool(a.Start.IsZero(), b.Start.IsZero()), a.Start.Compare(b.Start), cmp.Compare(a.seq, b.seq))
}

// Books say what work holds, by queue.
type Books interface {
	// Held is what the work of a queue holds, without that of queues below it.
	Held(queue string) Charge
}

// Ledger keeps the books. The zero Ledger is empty.
type Ledger struct {
	held   map[string]Charge
	claims map[string][]*Claim
	booked int64 // so far

	changes []change // the last of them, in order
	dropped int64    // changes before those
}

// change is a claim that was booked, or freed.
type change struct {
	claim *Claim
	freed bool
}

// keptChanges is how many changes are kept at least for who follows them.
const keptChanges = 1 << 12

func (l *Ledger) logChange(c *Claim, freed bool) {
	if len(l.changes) >= 2*keptChanges {
		n := copy(l.changes, l.changes[len(l.changes)-keptChanges:])
		clear(l.changes[n:]) // they hold on to ended work
		l.dropped += int64(len(l.changes) - n)
		l.changes = l.changes[:n]
	}
	l.changes = append(l.changes, change{c, freed})
}

// since lists the changes from a position on; ok is false when they are no longer kept.
func (l *Ledger) since(at int64) (changes []change, ok bool) {
	if at < l.dropped {
		return nil, false
	}
	return l.changes[at-l.dropped:], true
}

// end is the position of the next change.
func (l *Ledger) end() int64 { return l.dropped + int64(len(l.changes)) }

// Held implements [Books].
func (l *Ledger) Held(queue string) Charge { return l.held[queue] }

// Claims is the work of a queue in the order in which it was booked.
func (l *Ledger) Claims(queue string) []*Claim { return l.claims[queue] }

// Book adds a claim, which must not be changed until it is freed. A claim that was
// freed and comes back keeps its place.
func (l *Ledger) Book(c *Claim) {
	if c.seq == 0 {
		l.booked++
		c.seq = l.booked
	}
	if c.Queue == "" {
		return
	}
	if l.held == nil {
		l.held, l.claims = map[string]Charge{}, map[string][]*Claim{}
	}
	list := l.claims[c.Queue]
	at, _ := slices.BinarySearchFunc(list, c.seq, bySeq)
	l.claims[c.Queue] = slices.Insert(list, at, c)
	l.held[c.Queue] = l.held[c.Queue].Plus(c.Charge)
	l.logChange(c, false)
}

// Free takes a claim off the books.
func (l *Ledger) Free(c *Claim) {
	if c.Queue == "" {
		return
	}
	list := l.claims[c.Queue]
	if at, ok := slices.BinarySearchFunc(list, c.seq, bySeq); ok {
		l.logChange(list[at], true)
		l.claims[c.Queue] = slices.Delete(list, at, at+1)
		l.held[c.Queue] = l.held[c.Queue].Plus(c.Charge.Times(-1))
	}
}

// Again is a claim for the same work, after it was freed: it keeps its place.
func (c *Claim) Again(id, queue string, priority int, start time.Time, charge Charge) Claim {
	return Claim{ID: id, Queue: queue, Priority: priority, Start: start, Charge: charge, seq: c.seq}
}

func bySeq(c *Claim, seq int64) int { return cmp.Compare(c.seq, seq) }
