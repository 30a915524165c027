// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
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

// payable refuses work where its queue could not pay for it, with the groups of its job before it: a
// system job for every node that it starts on, one with children where the queue could never pay for
// one. Paid work counts from here on as before the next.
func payable(a groupAsk, form blocks.Placed, before atOnce) (err error) {
	if a.queue == nil {
		return nil
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
	case a.ask.Later:
		if why := a.tx.Queue.NeverInQuota(a.queue.Name, u.together(a.queue.Name)); why != "" {
			err = admit.Forbidden("group %q: %s", a.ask.Group, why)
		}
	}
	if err == nil {
		before[a.queue.Name] = before[a.queue.Name].Plus(u.all)
	}
	return err
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

// payableEverywhere refuses a system job that its queue could not pay for on every node.
func (u *unattended) payableEverywhere() error {
	if u.all == (place.Charge{}) {
		return nil
	}
	if why := u.overTogether(); why != "" {
		return admit.Forbidden("group %q of a %s job starts on %d nodes: %s", u.ask.Group, u.ask.JobType, u.allocs, why)
	}
	return nil
}
