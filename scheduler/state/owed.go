// SPDX-License-Identifier: MPL-2.0

package state

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Owed is the cost of work that was admitted to a queue, or to those below it, and waits
// for room, or failed and is started again: it may start at any time. Work promised on a node
// counts as held already, and what a job owes itself is left out.
func (q *Queue) Owed(queue string, without nomad.JobKey) place.Charge {
	var sum place.Charge
	for _, w := range q.Returning() {
		if w.Job != without && q.quotas.settings.config.Within(w.Turn.Queue, queue) {
			sum = sum.Plus(w.Asks())
		}
	}
	return sum.Plus(q.waitlist.owedForRoom(queue, without))
}

// OverWithOwed says why a queue may not take another charge besides the charges that others were
// admitted for and Nomad may start at any time; empty when it may. The debt is that
// of the queue, or one above it, whose limit forbids it. What a job owes itself is left
// out.
func (q *Queue) OverWithOwed(queue string, cost place.Charge, without nomad.JobKey) (owed place.Charge, why string) {
	c := q.quotas.settings.config
	for one := c.Queue(queue); one != nil && why == ""; one = c.Queue(one.Parent) {
		owed = q.Owed(one.Name, without)
		why = q.OverQuota(one.Name, cost.Plus(owed))
	}
	return owed, why
}
