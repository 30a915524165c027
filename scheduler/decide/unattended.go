// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// atOnce is what groups of a job cost that Nomad starts by itself and at once, by their queue.
type atOnce map[string]place.Charge

// within is their cost to a queue, with those below it.
func (t atOnce) within(tx *state.Tx, queue string) (sum place.Charge) {
	for name, c := range t {
		if tx.Config().Within(name, queue) {
			sum = sum.Plus(c)
		}
	}
	return sum
}

// unattended is a group whose allocs Nomad starts by itself, now or later.
type unattended struct {
	groupAsk
	allocs int          // that start at once, beside those that run
	all    place.Charge // of these
	before atOnce       // what groups of the same job cost that start with it
}

// payable refuses work that Nomad starts by itself, now or later, where its queue
// could not pay for it, with the groups of its job before it: a system job for every node that it
// starts on, a parameterized one where the queue could never pay for a child. A periodic one waits,
// and its children with it, where the queue cannot pay for one now. Paid work counts from here on as before the next.
func payable(a groupAsk, form blocks.Placed, before atOnce) (hold *admit.Hold, err error) {
	if a.queue == nil {
		return nil, nil
	}
	u := unattended{groupAsk: a, allocs: max(1, a.ask.Count), before: before}
	if everywhere(a.ask) {
		nodes := nodesFor(a.tx, blocks.Need(a.tx, a.ask, blocks.Tasks(a.tx, a.ask, a.parts, form)))
		u.allocs = max(0, nodes*u.allocs-a.tx.Cluster.Live(a.key, a.ask.Group))
	}
	u.all = leastCost(a.tx, a.parts).Times(int64(u.allocs))
	switch {
	case everywhere(a.ask):
		err = u.payableEverywhere()
	case a.ask.ByClock:
		hold, err = u.payableByClock()
	case a.ask.Later:
		if why := a.tx.Queue.NeverInQuota(a.queue.Name, u.together(a.queue.Name)); why != "" {
			err = admit.Forbidden("group %q: %s", a.ask.Group, why)
		}
	}
	if hold == nil && err == nil {
		before[a.queue.Name] = before[a.queue.Name].Plus(u.all)
	}
	return hold, err
}

// together is its cost to a queue with the groups of its job before it.
func (u *unattended) together(queue string) place.Charge {
	return u.all.Plus(u.before.within(u.tx, queue))
}

// nodesFor counts the nodes on which Nomad starts a system group, now or when others end.
func nodesFor(tx *state.Tx, need *state.Need) int {
	room := tx.Capacity.RoomFor(need)
	return room.Count(state.FitsNow) + room.Count(state.FitsLater)
}

// payableByClock has a periodic job wait where its queue cannot pay for a child.
func (u *unattended) payableByClock() (*admit.Hold, error) {
	hold, err := quotaHold(u.groupAsk, u.all, start{allocs: u.ask.Count})
	if err != nil || staysFree(u.tx, u.key, u.ask) {
		return nil, err
	}
	if hold != nil {
		return ChildrenWait(hold.Sentence), nil
	}
	why := u.overTogether()
	if why == "" {
		why = u.overByClock()
	}
	if why == "" {
		return nil, nil
	}
	return ChildrenWait(why), nil
}

// overTogether says why a queue cannot pay for so much now beside the groups of the job before;
// empty where it can.
func (u *unattended) overTogether() string {
	for q := u.queue; q != nil; q = u.tx.Config().Queue(q.Parent) {
		if owed, why := u.tx.Queue.OverWithOwed(q.Name, u.together(q.Name), u.key); why != "" {
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
func (u *unattended) overByClock() string {
	if u.tx.Capacity.Overran(u.queue.Name) {
		return fmt.Sprintf("a child of a periodic job took queue %s above its limit within the last hour", u.queue.Name)
	}
	for q := u.queue; q != nil; q = u.tx.Config().Queue(q.Parent) {
		sum := u.together(q.Name).Plus(byClock(u.tx, u.key, q.Name))
		if why := u.tx.Queue.NeverInQuota(q.Name, sum); why != "" {
			return why + " with a child of each other periodic job that does not wait"
		}
	}
	return ""
}

// byClock is what a child of each periodic job costs a queue that does not wait, but for one job.
func byClock(tx *state.Tx, but nomad.JobKey, queue string) (sum place.Charge) {
	for key, g := range tx.Queue.Clocked() {
		if q, err := tx.Config().QueueFor(key.Namespace, g.Ask.Queue); key == but || err != nil || q == nil || !tx.Config().Within(q.Name, queue) {
			continue
		}
		sum = sum.Plus(costAtOnce(tx, &g))
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
func staysFree(tx *state.Tx, key nomad.JobKey, a *admit.Ask) bool {
	j, r := tx.Cluster.Job(key), tx.Queue.Record(key)
	if j == nil || r == nil || !j.Periodic || j.Group(a.Group) == nil || !state.AsRecorded(r, j.Group(a.Group)) {
		return false
	}
	was := r.Groups[a.Group]
	return was.Decision.Hold == nil && was.Key == a.Key() && a.Count <= was.Ask.Count && a.Queue == was.Ask.Queue
}

// payableEverywhere refuses a system job that its queue could not pay for on every node. Nomad has
// no child of a periodic one wait, so that it is refused where others would wait.
func (u *unattended) payableEverywhere() error {
	if u.all == (place.Charge{}) {
		return nil
	}
	why := u.overTogether()
	if why == "" && u.ask.ByClock && !staysFree(u.tx, u.key, u.ask) {
		why = u.overByClock()
	}
	if why != "" {
		return admit.Forbidden("group %q of a %s job starts on %d nodes: %s", u.ask.Group, u.ask.JobType, u.allocs, why)
	}
	return nil
}
