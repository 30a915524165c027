// SPDX-License-Identifier: MPL-2.0

package quota

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Turn is what the order needs to know of work.
type Turn struct {
	ID       string
	Queue    string // empty: none
	Priority int
	Since    time.Time // when it began to wait; of work that runs, when it started
	// Later is how much later than it came it counts as having come: see [Later].
	Later time.Duration
}

// LongestRun is the longest run by which work goes behind shorter work, and the run that unknown
// work counts with.
const LongestRun = 7 * 24 * time.Hour

// Later is how much later than it came work counts as having come where the shortest goes
// first: a day if it is expected to run for an hour, and twice as much for four times the run (0: not
// known). What comes later than that goes behind it, however short: that bounds the wait, and the
// order of two that wait never changes. Of the functions that were compared on real training
// clusters, the root made mean waits short at the least price in longest ones.
func Later(run time.Duration) time.Duration {
	if run <= 0 || run > LongestRun {
		run = LongestRun
	}
	return time.Duration(24 * math.Sqrt(run.Hours()) * float64(time.Hour))
}

// ShorterUntil is until when later, shorter work still goes first; zero where it never does.
func (a Turn) ShorterUntil() time.Time {
	if a.Later == 0 {
		return time.Time{}
	}
	return a.Since.Add(a.Later)
}

// CompareAge is negative when a counts as having come before b.
func (a Turn) CompareAge(b Turn) int {
	return cmp.Or(a.Since.Add(a.Later).Compare(b.Since.Add(b.Later)), cmp.Compare(a.ID, b.ID))
}

// Order says whose turn it is, at one moment. Waiting work is tried in this order, and
// so is held work released; victims are taken from its end.
//
//  1. the higher priority
//  2. the queue that holds the smaller part of its guarantee now (of compute or of
//     memory, whichever is larger), then the one that held the smaller part over time;
//     first of their root queues, then of the ones below, down to their own
//  3. what came earlier, or counts as such ([Turn.Later]); then the ID
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
	return a.CompareAge(b)
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
