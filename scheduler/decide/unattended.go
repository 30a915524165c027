package decide

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// atOnce is what groups of a job cost that Nomad starts by itself and at once, by their queue.
type atOnce map[string]place.Charge

// within is what they cost a queue, with those below it.
func (t atOnce) within(tx *state.Tx, queue string) (sum place.Charge) {
	for name, c := range t {
		if tx.IsWithin(name, queue) {
			sum = sum.Plus(c)
		}
	}
	return sum
}

// payable refuses work that Nomad starts by itself, now or later, where its queue
// could not pay for it, with the groups of its job before it: a system job for every node that it
// starts on, a parameterized one where the queue could never pay for a child. A periodic one waits,
// and its children with it, where the queue cannot pay for one now.
func (p *groupPlacer) payable() (hold *admit.Hold, err error) {
	if p.queue == nil {
		return nil, nil
	}
	all := p.startsAtOnce()
	switch {
	case p.everywhere():
		err = p.payableEverywhere(all)
	case p.ask.ByClock:
		hold, err = p.payableByClock(all)
	case p.ask.Later:
		if why := p.tx.NeverInQuota(p.queue.Name, all.Plus(p.before.within(p.tx, p.queue.Name))); why != "" {
			err = admit.Forbidden("group %q: %s", p.ask.Group, why)
		}
	}
	if hold == nil && err == nil {
		p.before[p.queue.Name] = p.before[p.queue.Name].Plus(all)
	}
	return hold, err
}

// everywhere reports whether Nomad starts the group on every node.
func (p *groupPlacer) everywhere() bool {
	return p.ask.JobType == "system" || p.ask.JobType == "sysbatch"
}

// startsAtOnce is what all allocs of a group cost that Nomad starts at once beside those that run.
func (p *groupPlacer) startsAtOnce() place.Charge {
	if !p.everywhere() {
		return p.leastCost().Times(int64(max(1, p.ask.Count)))
	}
	return p.leastCost().Times(int64(max(0, p.missingEverywhere())))
}

// missingEverywhere is how many allocs of a system group do not run yet.
func (p *groupPlacer) missingEverywhere() int {
	nodes := nodesFor(p.tx, blocks.Need(p.tx, p.ask, blocks.Tasks(p.tx, p.ask, p.parts, p.form)))
	return nodes*max(1, p.ask.Count) - p.tx.Live(p.key, p.ask.Group)
}

// nodesFor counts the nodes on which Nomad starts a system group, now or when others end.
func nodesFor(tx *state.Tx, need *state.Need) int {
	room := tx.RoomFor(need)
	return room.Count(state.FitsNow) + room.Count(state.FitsLater)
}

// payableByClock has a periodic job wait where its queue cannot pay for a child.
func (p *groupPlacer) payableByClock(all place.Charge) (*admit.Hold, error) {
	hold, err := p.quotaFor(all, 0, p.ask.Count)
	if err != nil || p.staysFree() {
		return nil, err
	}
	if hold != nil {
		return ChildrenWait(hold.Sentence), nil
	}
	why := p.overTogether(all)
	if why == "" {
		why = p.overByClock(all)
	}
	if why == "" {
		return nil, nil
	}
	return ChildrenWait(why), nil
}

// overTogether says why a queue cannot pay for so much now beside the groups of the job before;
// empty where it can.
func (p *groupPlacer) overTogether(all place.Charge) string {
	for q := p.queue; q != nil; q = p.tx.Config().Queue(q.Parent) {
		sum := all.Plus(p.before.within(p.tx, q.Name))
		if owed, why := p.tx.OverWithOwed(q.Name, sum, p.key); why != "" {
			if owed != (place.Charge{}) {
				why += fmt.Sprintf(", with %s of it for %s", owed, owedWork)
			}
			return why
		}
	}
	return ""
}

// overByClock says why the children of a periodic job are to wait although its queue could pay for
// one now; empty where they are not. Nomad starts one of each such job whatever the queue holds, and
// all of them at once. Whoever took the queue above its limit a moment ago could do so again.
func (p *groupPlacer) overByClock(all place.Charge) string {
	if p.tx.Overran(p.queue.Name) {
		return fmt.Sprintf("a child of a periodic job took queue %s above its limit within the last hour", p.queue.Name)
	}
	for q := p.queue; q != nil; q = p.tx.Config().Queue(q.Parent) {
		sum := all.Plus(p.before.within(p.tx, q.Name)).Plus(p.byClock(q.Name))
		if why := p.tx.NeverInQuota(q.Name, sum); why != "" {
			return why + " with a child of each other periodic job that does not wait"
		}
	}
	return ""
}

// byClock is what a child of each other periodic job costs a queue that does not wait.
func (p *groupPlacer) byClock(queue string) (sum place.Charge) {
	for key, g := range p.tx.Clocked() {
		if q, err := p.tx.Config().QueueFor(key.Namespace, g.Ask.Queue); key == p.key || err != nil || q == nil || !p.tx.IsWithin(q.Name, queue) {
			continue
		}
		sum = sum.Plus(costAtOnce(p.tx, &g))
	}
	return sum
}

// costAtOnce is what all allocs of a recorded group cost that start at once.
func costAtOnce(tx *state.Tx, g *record.Group) place.Charge {
	n := max(1, g.Ask.Count)
	if g.Ask.JobType == "sysbatch" {
		n *= nodesFor(tx, blocks.NeedOf(tx, g))
	}
	return g.Cost.Times(int64(n))
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
	if j == nil || r == nil || !j.Periodic || j.Group(p.ask.Group) == nil || !state.AsRecorded(r, j.Group(p.ask.Group)) {
		return false
	}
	was := r.Groups[p.ask.Group]
	return was.Decision.Hold == nil && was.Key == p.ask.Key() && p.ask.Count <= was.Ask.Count && p.ask.Queue == was.Ask.Queue
}

// payableEverywhere refuses a system job that its queue could not pay for on every node. Nomad has
// no child of a periodic one wait, so that it is refused where others would wait.
func (p *groupPlacer) payableEverywhere(all place.Charge) error {
	if all == (place.Charge{}) {
		return nil
	}
	why := p.overTogether(all)
	if why == "" && p.ask.ByClock && !p.staysFree() {
		why = p.overByClock(all)
	}
	if why != "" {
		return admit.Forbidden("group %q of a %s job starts on %d nodes: %s", p.ask.Group, p.ask.JobType, p.missingEverywhere(), why)
	}
	return nil
}
