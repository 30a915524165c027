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

// payable refuses work that Nomad starts by itself, now or later, where its queue
// could not pay for it: a system job for every node that it starts on, a parameterized one
// where the queue could never pay for a child. A periodic one waits, and its children with it,
// where the queue cannot pay for one now.
func (p *groupPlacer) payable() (*admit.Hold, error) {
	if p.queue == nil {
		return nil, nil
	}
	everywhere := p.ask.JobType == "system" || p.ask.JobType == "sysbatch"
	all := p.leastCost().Times(int64(max(1, p.ask.Count)))
	switch {
	case p.ask.Later && p.ask.ByClock && !everywhere:
		hold, err := p.quotaFor(all, 0, p.ask.Count)
		if hold == nil || p.staysFree() {
			return nil, err
		}
		return ChildrenWait(hold.Sentence), nil
	case p.ask.Later && !p.ask.ByClock:
		if why := p.tx.NeverInQuota(p.queue.Name, all); why != "" {
			return nil, forbidden("group %q: %s", p.ask.Group, why)
		}
		return nil, nil
	}
	return nil, p.payableEverywhere()
}

// ChildrenWait has the children of a periodic job wait for quota, before they start.
func ChildrenWait(why string) *admit.Hold {
	return &admit.Hold{Kind: view.WaitsForQuota, Sentence: why + "; each child of a periodic job waits for it before it starts, until the job is registered anew while there is enough"}
}

// staysFree reports whether a periodic job whose children do not wait is registered as it was
// decided, for no less than it asks for now: like a job that runs, it is not held where it is
// submitted again.
func (p *groupPlacer) staysFree() bool {
	j, r := p.tx.Job(p.key), p.tx.Record(p.key)
	if j == nil || r == nil || j.Group(p.ask.Group) == nil || !state.AsRecorded(r, j.Group(p.ask.Group)) {
		return false
	}
	was := r.Groups[p.ask.Group]
	return was.Decision.Hold == nil && was.Key == p.ask.Key() && p.ask.Count <= was.Ask.Count && p.ask.Queue == was.Ask.Queue
}

// payableEverywhere refuses a system job that its queue could not pay for on every node.
func (p *groupPlacer) payableEverywhere() error {
	tx, cost := p.tx, p.leastCost()
	room := tx.RoomFor(needOf(tx, p.ask, tasks(p.tx, p.ask, p.parts, p.form)))
	nodes := room.Count(state.FitsNow) + room.Count(state.FitsLater)
	missing := nodes*max(1, p.ask.Count) - tx.Live(p.key, p.ask.Group)
	if owed, why := tx.OverWithOwed(p.queue.Name, cost.Times(int64(max(0, missing))), p.key); missing > 0 && why != "" {
		if owed != (place.Charge{}) {
			why += fmt.Sprintf(", with %s of it for %s", owed, owedWork)
		}
		return forbidden("group %q of a %s job starts on %d nodes: %s", p.ask.Group, p.ask.JobType, missing, why)
	}
	return nil
}

// leastCost is the least that one alloc costs its queue, on whatever GPU. On
// which it lands, and what that costs, is seen when it is placed.
func (p *groupPlacer) leastCost() place.Charge {
	var sum place.Charge
	for i := range p.parts {
		var least place.Charge
		p.parts[i].each(func(r *place.Request) {
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
		return nil, forbidden("group %q: %s", p.ask.Group, why)
	}
	if p.beside > 0 {
		if why := p.tx.NeverInQuota(p.queue.Name, all.Plus(p.runningCharge())); why != "" {
			return nil, forbidden("group %q: its canaries run beside what runs of it: %s", p.ask.Group, why)
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
		if r == nil || w.Job == p.key || !tx.ShareLimit(w.Turn.Queue, p.queue.Name) || !goesFirst(tx, w.Turn, turn) {
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
