// SPDX-License-Identifier: MPL-2.0

package quota

import (
	"cmp"
	"slices"
	"time"
)

// Turn is what the order needs to know of work.
type Turn struct {
	ID       string
	Queue    string // empty: none
	Priority int
	Since    time.Time // when it began to wait; of work that runs, when it started
}

// Order says whose turn it is, at one moment. Waiting work is tried in this order, and
// so is held work released; victims are taken from its end.
//
//  1. the higher priority
//  2. the queue that holds the smaller part of its guarantee now (of compute or of
//     memory, whichever is larger), then the one that held the smaller part over time;
//     first of their root queues, then of the ones below, down to their own
//  3. what came earlier; then the ID
//
// A queue without a guarantee comes after all that have one, and so does work without
// a queue or of one that is not there; of two queues, the one that holds less. A queue above others that has none
// stands for the sum of theirs.
type Order struct {
	quotas *Quotas
	books  Books
	past   *Past
	shares map[string][]int64
}

// Order is the order of this moment: the books must not change while it is used. No
// quotas and no past are fine.
func (q *Quotas) Order(b Books, past *Past) *Order {
	return &Order{quotas: q, books: b, past: past, shares: map[string][]int64{}}
}

// Compare is negative when it is a's turn before b's.
func (o *Order) Compare(a, b Turn) int {
	if c := cmp.Compare(b.Priority, a.Priority); c != 0 {
		return c
	}
	if c := o.CompareQueues(a.Queue, b.Queue); c != 0 {
		return c
	}
	return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID))
}

// CompareQueues is negative when it is the turn of queue a before that of queue b, of
// the same priority.
func (o *Order) CompareQueues(a, b string) int {
	if a == b {
		return 0
	}
	return slices.Compare(o.sharesOf(a), o.sharesOf(b))
}

// unpromised is more than any part of a guarantee, in thousandths.
const unpromised = 1 << 40

// sharesOf is what a queue holds of its guarantee now and held over time, in
// thousandths: of its root, then of each queue down to it. Without quotas all are alike.
func (o *Order) sharesOf(name string) []int64 {
	if o.quotas == nil {
		return nil
	}
	path := o.quotas.Path(name)
	if len(path) == 0 {
		return []int64{unpromised}
	}
	if known, found := o.shares[name]; found {
		return known
	}
	var list []int64
	for _, at := range slices.Backward(path) {
		own := o.quotas.stands(at)
		list = append(list, usedPart(o.quotas.Used(o.books, at), own), usedPart(o.past.Mean(o.quotas, at), own))
	}
	o.shares[name] = list
	return list
}

// stands is the guarantee of a queue, or the sum of those below where it has none.
func (q *Quotas) stands(name string) Charge {
	own := q.queues[name]
	if own.promised() {
		return own.Guarantee()
	}
	var sum Charge
	for _, below := range q.names {
		if q.queues[below].Parent == name {
			sum = sum.Plus(q.stands(below))
		}
	}
	return sum
}

// usedPart is how much of a guarantee is used, in thousandths.
func usedPart(used, own Charge) int64 {
	if own == (Charge{}) {
		return unpromised + used.Milli
	}
	return max(thousandths(used.Milli, own.Milli), thousandths(used.MemoryMiB, own.MemoryMiB))
}

func thousandths(of, all int64) int64 {
	if all == 0 {
		return 0
	}
	return of * 1000 / all
}
