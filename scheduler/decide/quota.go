// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"net/http"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// owedWork is what a queue owes its quota to, for people.
const owedWork = "work that was admitted and waits for room, or is started again after a failure"

// leastCost is the least that one alloc costs its queue, on whatever GPU. On
// which it lands, and what that costs, is seen when it is placed.
func leastCost(tx *state.Tx, parts []blocks.Part) place.Charge {
	var sum place.Charge
	for i := range parts {
		var least place.Charge
		parts[i].Alternatives(func(r *place.Request) {
			switch c := tx.Planner().LeastCharge(r); {
			case least == place.Charge{}:
				least = c
			case c != place.Charge{}: // some GPU can hold it
				least = c.Smaller(least)
			}
		})
		sum = sum.Plus(least)
	}
	return sum
}

// quotaHold is the hold of a group whose queue cannot pay now for what all allocs cost that start;
// nil where it can. A cost that it could never pay is refused.
func quotaHold(a groupAsk, all place.Charge, s start) (*admit.Hold, error) {
	if why := a.tx.Queue.NeverInQuota(a.queue.Name, all); why != "" {
		return nil, admit.Forbidden("group %q: %s", a.ask.Group, why)
	}
	if s.beside != (place.Charge{}) {
		if why := a.tx.Queue.NeverInQuota(a.queue.Name, all.Plus(s.beside)); why != "" {
			return nil, admit.Forbidden("group %q: its canaries run beside what runs of it: %s", a.ask.Group, why)
		}
	}
	if why := a.tx.Queue.OverQuota(a.queue.Name, all); why != "" {
		return overdrawn(a.ask, s, why)
	}
	if owed, why := a.tx.Queue.OverWithOwed(a.queue.Name, all, a.key); why != "" {
		return overdrawn(a.ask, s, fmt.Sprintf("%s of it are for %s", owed, owedWork))
	}
	if first := firstInQueue(a, all); first != nil && s.running == 0 {
		return &admit.Hold{Kind: view.WaitsForQuota, Sentence: fmt.Sprintf("%s with priority %d waits for what this would take of the quota", otherJob(a.key, first.Job), first.Turn.Priority)}, nil
	}
	return nil, nil
}

// firstInQueue is a group that goes before the ask and waits for the same quota,
// of which too little would be left for it; nil for none. Without it small jobs
// would take what comes free, one after the other, and a larger one never runs.
func firstInQueue(a groupAsk, own place.Charge) *state.Waiting {
	type claim struct {
		queue string
		all   place.Charge
	}
	tx, turn, payable := a.tx, turnOf(a.tx, a.ask), map[claim]bool{}
	for w := range tx.Queue.Waiting(view.WaitsForQuota, view.WaitsForRoom) {
		r := tx.Queue.Record(w.Job)
		if r == nil || w.Job == a.key || tx.Config().SharedLimit(w.Turn.Queue, a.queue.Name) == "" || !goesFirst(tx, w.Turn, turn) {
			continue
		}
		g := r.Groups[w.Group]
		c := claim{w.Turn.Queue, g.Cost.Times(int64(w.Missing))}
		if payable[c] {
			continue
		}
		payable[c] = true
		if tx.Queue.NeverInQuota(c.queue, c.all) == "" && tx.Queue.OverQuota(c.queue, c.all.Plus(own)) != "" {
			return w
		}
	}
	return nil
}

// payableAfter reports whether the queue of a group that is held can pay for promised room once victims
// are gone, beside what it owes, and need not leave that to another one that goes first.
func payableAfter(tx *state.Tx, key nomad.JobKey, g *record.Group, promises []Promise, victims []place.Usage) bool {
	q := tx.Cluster.QueueOf(key, g.Ask.Group)
	if q == nil || g.Decision.Hold == nil {
		return true
	}
	defer tx.Without(func(yield func(*nomad.Alloc) bool) {
		for _, u := range victims {
			if a := tx.Cluster.Alloc(u.ID); a != nil && !yield(a) {
				return
			}
		}
	})()
	var cost place.Charge
	for _, p := range promises {
		cost = cost.Plus(tx.Capacity.Charge(p.Usage.NodeID, p.Usage.Takes))
	}
	if tx.Cluster.Live(key, g.Ask.Group) == 0 && firstInQueue(groupAsk{tx: tx, key: key, ask: &g.Ask, queue: q}, cost) != nil {
		return false
	}
	_, why := tx.Queue.OverWithOwed(q.Name, cost, key)
	return why == ""
}

// overdrawn holds a group that its queue cannot pay for now. A group that runs
// already is not held, since a hold would cover what runs; it is refused.
func overdrawn(a *admit.Ask, s start, why string) (*admit.Hold, error) {
	if s.running > 0 {
		return nil, &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("group %q: %d more allocs are over the quota: %s", a.Group, s.allocs, why)}
	}
	return &admit.Hold{Kind: view.WaitsForQuota, Sentence: why}, nil
}
