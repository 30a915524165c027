package decide

import (
	"fmt"
	"net/http"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// owedWork is what a queue owes its quota to, for people.
const owedWork = "work that was admitted and waits for room, or is started again after a failure"

// leastCost is the least that one alloc costs its queue, on whatever GPU. On
// which it lands, and what that costs, is seen when it is placed.
func (p *groupPlacer) leastCost() place.Charge {
	var sum place.Charge
	for i := range p.parts {
		var least place.Charge
		p.parts[i].Alternatives(func(r *place.Request) {
			switch c := p.tx.Planner().LeastCharge(r); {
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

// quota says whether the group must wait for its queue.
func (p *groupPlacer) quota(cost place.Charge, running, missing int) (*admit.Hold, error) {
	if p.queue == nil || missing == 0 {
		return nil, nil
	}
	return p.quotaFor(cost.Times(int64(missing)), running, missing)
}

// quotaFor is quota for what all missing allocs cost together.
func (p *groupPlacer) quotaFor(all place.Charge, running, missing int) (*admit.Hold, error) {
	if why := p.tx.NeverInQuota(p.queue.Name, all); why != "" {
		return nil, admit.Forbidden("group %q: %s", p.ask.Group, why)
	}
	if p.beside > 0 {
		if why := p.tx.NeverInQuota(p.queue.Name, all.Plus(p.runningCharge())); why != "" {
			return nil, admit.Forbidden("group %q: its canaries run beside what runs of it: %s", p.ask.Group, why)
		}
	}
	if why := p.tx.OverQuota(p.queue.Name, all); why != "" {
		return p.overdrawn(why, running, missing)
	}
	if owed, why := p.tx.OverWithOwed(p.queue.Name, all, p.key); why != "" {
		return p.overdrawn(fmt.Sprintf("%s of it are for %s", owed, owedWork), running, missing)
	}
	if first := p.firstInQueue(all); first != nil && running == 0 {
		return &admit.Hold{Kind: view.WaitsForQuota, Sentence: fmt.Sprintf("%s with priority %d waits for what this would take of the quota", p.other(first.Job), first.Turn.Priority)}, nil
	}
	return nil, nil
}

// firstInQueue is a group that goes before the ask and waits for the same quota,
// of which too little would be left for it; nil for none. Without it small jobs
// would take what comes free, one after the other, and a larger one never runs.
func (p *groupPlacer) firstInQueue(own place.Charge) *state.Waiting {
	type claim struct {
		queue string
		all   place.Charge
	}
	tx, turn, payable := p.tx, turnOf(p.tx, p.ask), map[claim]bool{}
	for w := range tx.WaitingFor(view.WaitsForQuota) {
		r := tx.Record(w.Job)
		if r == nil || w.Job == p.key || tx.Overlaps(w.Job) || !tx.ShareLimit(w.Turn.Queue, p.queue.Name) || !goesFirst(tx, w.Turn, turn) {
			continue
		}
		g := r.Groups[w.Group]
		c := claim{w.Turn.Queue, g.Cost.Times(int64(w.Missing))}
		if payable[c] {
			continue
		}
		payable[c] = true
		if tx.NeverInQuota(c.queue, c.all) == "" && tx.OverQuota(c.queue, c.all.Plus(own)) != "" {
			return w
		}
	}
	return nil
}

// overdrawn holds a group that its queue cannot pay for now. A group that runs
// already is not held, since a hold would cover what runs; it is refused.
func (p *groupPlacer) overdrawn(why string, running, missing int) (*admit.Hold, error) {
	if running > 0 {
		return nil, &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("group %q: %d more allocs are over the quota: %s", p.ask.Group, missing, why)}
	}
	return &admit.Hold{Kind: view.WaitsForQuota, Sentence: why}, nil
}
