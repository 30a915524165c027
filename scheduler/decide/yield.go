// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Yielding is a group that was admitted to a queue and may start at any time, and gives its
// claim on the quota up to one with a higher priority.
type Yielding struct {
	Job          nomad.JobKey
	Group, Queue string
}

// yielding says which groups have to give up their claim on a queue's quota so that a group which
// waits for that quota can have it once the victims are gone: of those with a lower priority, the last
// in the order first. It is false if the group would have to leave the quota to another one that goes
// first, or if the queue could not pay even then: Nomad would start the group, and later the others too.
func yielding(tx *state.Tx, key nomad.JobKey, g *record.Group, promises []Promise, victims []place.Usage) (list []Yielding, payable bool) {
	q := tx.QueueOf(key, g.Ask.Group)
	if q == nil || g.Decision.Hold == nil {
		return nil, true
	}
	goes := func(yield func(*nomad.Alloc) bool) {
		for _, u := range victims {
			if a := tx.Alloc(u.ID); a != nil && !yield(a) {
				return
			}
		}
	}
	defer tx.Without(goes)()
	var cost place.Charge
	for _, p := range promises {
		cost = cost.Plus(tx.Charge(p.Usage.NodeID, p.Usage.Takes))
	}
	if tx.Live(key, g.Ask.Group) == 0 && firstInQueue(groupAsk{tx: tx, key: key, ask: &g.Ask, queue: q}, cost) != nil {
		return nil, false
	}
	turn := turnOf(tx, &g.Ask)
	for _, w := range slices.Backward(claims(tx)) {
		if _, why := tx.OverWithOwed(q.Name, cost, key); why == "" {
			return list, true
		}
		if w.Turn.Queue == q.Name && w.Job != key && w.Turn.Priority < turn.Priority && mayYield(tx, w) {
			cost = cost.Plus(w.Asks().Times(-1))
			list = append(list, Yielding{w.Job, w.Group, w.Turn.Queue})
		}
	}
	_, why := tx.OverWithOwed(q.Name, cost, key)
	return list, why == ""
}

// claims are the groups that were admitted and may start at any time, in their order: those that
// wait for room, and those without running allocs that Nomad starts again after a failure.
func claims(tx *state.Tx) []*state.Waiting {
	list := slices.Collect(tx.WaitingFor(""))
	waiting := len(list)
	for _, w := range tx.Returning() {
		if tx.Live(w.Job, w.Group) == 0 && w.Missing > 0 {
			list = append(list, w)
		}
	}
	if len(list) > waiting {
		order := tx.Order()
		slices.SortStableFunc(list, func(x, y *state.Waiting) int { return order.Compare(x.Turn, y.Turn) })
	}
	return list
}

// mayYield reports whether a group that may start at any time may be made to wait for its quota
// instead: it is as it was recorded, can be changed, and no room is on its way to it. Of a
// gang all would have to.
func mayYield(tx *state.Tx, w *state.Waiting) bool {
	r := tx.Record(w.Job)
	if r == nil || tx.UnderWay(r) || tx.Unchangeable(w.Job) || !tx.MayRepeat(w.Job) || tx.Drifted(w.Job) || tx.Unrecorded(w.Job) {
		return false
	}
	g, known := r.Groups[w.Group]
	return known && !g.Ask.Gang && tx.Assumed(w.Job, w.Group) == 0 && g.Decision.Hold == nil
}
