// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// Apply takes changes from Nomad: nodes first, because usage needs them.
func (s *State) Apply(changes []nomad.Change, index uint64) {
	s.Do(func(tx *Tx) {
		for _, c := range changes {
			switch {
			case c.Node != nil:
				tx.node(c.Node)
			case c.NodeGone != "":
				tx.nodeGone(c.NodeGone)
			}
		}
		for _, c := range changes {
			tx.applyWork(c)
		}
		tx.Cluster.contact.index = max(tx.Cluster.contact.index, index)
		tx.version++
		tx.Capacity.books.epoch++
	})
}

func (tx *Tx) applyWork(c nomad.Change) {
	switch {
	case c.Job != nil:
		tx.job(c.Job)
	case c.JobGone != nil:
		tx.jobGone(*c.JobGone)
	case c.Alloc != nil && c.Alloc.Holds():
		tx.alloc(c.Alloc)
	case c.Alloc != nil:
		tx.Cluster.lifetimes.learn(c.Alloc, tx.takesOf)
		tx.turnover.end(c.Alloc)
		tx.Queue.completions.note(c.Alloc)
		tx.allocGone(c.Alloc.ID)
		tx.Queue.returns.note(c.Alloc, tx.costOf)
		tx.bookRepeats(c.Alloc.Key())
	case c.Past != nil:
		tx.Cluster.lifetimes.learn(c.Past, tx.takesOf)
		tx.Queue.completions.note(c.Past)
		tx.bookRepeats(c.Past.Key())
	case c.AllocGone != "":
		tx.allocGone(c.AllocGone)
		tx.Queue.returns.forget(c.AllocGone)
	case c.Blocked != nil:
		tx.block(c.Blocked)
		if b := tx.Cluster.Blocked(c.Blocked.Key); b != nil {
			for id := range tx.Capacity.promises.refused(b) {
				tx.forget(id)
			}
		}
	case c.Unblocked != nil:
		tx.unblock(*c.Unblocked)
		tx.Queue.reasons.forget(*c.Unblocked)
	}
}

// node takes a node and books again what lies on it: positions of GPUs may have
// changed.
func (tx *Tx) node(n *nomad.Node) {
	id := n.Plan.ID
	tx.Capacity.books.seats.take(id)
	tx.Capacity.books.seats.touch(id)
	known := tx.Cluster.Node(id) != nil
	held := tx.Capacity.UsagesOn(id)
	for _, u := range held {
		tx.unbook(u.ID)
	}
	tx.forgetPlan(id)
	n = tx.Cluster.measurements.withMeasurements(n)
	if err := tx.Capacity.books.addNode(n.Plan); err != nil {
		tx.trouble(err)
		tx.forgetNode(id)
		return
	}
	tx.Cluster.nodes.put(n)
	for _, u := range held {
		tx.rebook(u.ID)
	}
	if known {
		return
	}
	tx.bookAllOn(id)
}

// bookAllOn books what lies on a node that was not known, in an order that is the same each
// time: of what begins together, the first to be booked goes first in its queue.
func (tx *Tx) bookAllOn(id string) {
	for _, a := range tx.Cluster.allocs.sortedOn(id) {
		tx.book(tx.usageOf(a))
	}
	for _, a := range tx.Capacity.promises.on(id) {
		tx.book(a.Usage)
	}
	for _, r := range tx.Capacity.reservations.on(id) {
		tx.book(r.Usage)
	}
}

func (tx *Tx) nodeGone(id string) {
	if n := tx.Cluster.Node(id); n != nil {
		tx.Cluster.measurements.leave(n)
	}
	tx.Capacity.books.seats.touch(id)
	for _, u := range tx.Capacity.UsagesOn(id) {
		tx.unbook(u.ID)
	}
	tx.forgetPlan(id)
	tx.forgetNode(id)
}

// forgetNode removes a node that there is no plan for, if it is there.
func (tx *Tx) forgetNode(id string) {
	tx.Cluster.nodes.remove(id)
	delete(tx.Cluster.unused.onNode, id)
	tx.Capacity.books.seats.leave(id)
}

// forgetPlan takes a node that nothing is booked on out of the core, if it is there.
func (tx *Tx) forgetPlan(id string) {
	if tx.Cluster.Node(id) == nil {
		return
	}
	if err := tx.Capacity.books.removeNode(id); err != nil {
		tx.trouble(err)
	}
}

// job takes a job; what its allocs count for may be different now.
func (tx *Tx) job(j *nomad.Job) {
	if was := tx.Cluster.Job(j.Key); was != nil && was.Index != j.Index {
		tx.Queue.completions.registered(j.Key)
	}
	before := tx.Cluster.jobs.put(j)
	if before != nil && before.Stopped && !j.Stopped {
		tx.startedAgain(j.Key)
	}
	tx.Queue.records.compare(j.Key)
	tx.Queue.enlist(j.Key)
	if j.Stopped {
		tx.Forget(j.Key)
		tx.Queue.completions.forget(j.Key)
	}
	if j.GPU && (before == nil || before.Index != j.Index) {
		tx.rebookJob(j.Key)
	}
}

// startedAgain notes that a job that had been stopped is registered to run. Where nothing
// was decided about that, it came around the service: its former admission may
// be taken.
func (tx *Tx) startedAgain(key nomad.JobKey) {
	known := tx.Queue.Record(key)
	if known == nil || tx.Queue.UnderWay(known) {
		return
	}
	r := known.Clone()
	for name, g := range r.Groups {
		g.Direct = true
		r.Groups[name] = g
	}
	tx.Keep(r)
}

// jobGone forgets a purged job and its allocs.
func (tx *Tx) jobGone(key nomad.JobKey) {
	tx.Cluster.jobs.remove(key)
	tx.Queue.returns.forgetJob(key)
	tx.Queue.completions.forget(key)
	tx.unblock(key)
	tx.Queue.records.compare(key)
	for _, a := range tx.Cluster.AllocsOf(key) {
		tx.allocGone(a.ID)
	}
	tx.Queue.reasons.forget(key)
	tx.Forget(key)
	tx.Gone.add(key)
}

func (tx *Tx) block(b *nomad.Blocked) {
	tx.Cluster.jobs.block(b.Key, b)
	tx.Cluster.wanted.begin(b, tx.Now())
	tx.Queue.enlist(b.Key)
	tx.bookRepeats(b.Key)
}

func (tx *Tx) unblock(key nomad.JobKey) {
	if b := tx.Cluster.jobs.said[key]; b != nil {
		tx.Cluster.wanted.end(b, tx.Now())
	}
	tx.Cluster.jobs.block(key, nil)
	tx.Queue.enlist(key)
	tx.bookRepeats(key)
}

func (tx *Tx) alloc(a *nomad.Alloc) {
	before := tx.Cluster.allocs.put(a)
	if a.Canary != (before != nil && before.Canary) {
		defer tx.rebookGroup(a)
	}
	if before == nil {
		if !tx.Cluster.contact.synced.IsZero() { // else it ran already when this replica came up
			tx.Capacity.books.plan.Started()
		}
		tx.Queue.starts.learn(a)
		tx.turnover.come(a)
		if id := tx.Capacity.promises.keptBy(a); id != "" {
			tx.forget(id)
		}
		tx.book(tx.usageOf(a))
		return
	}
	if before.Stopping != a.Stopping || len(before.Devices) != len(a.Devices) || before.CPUMHz != a.CPUMHz || before.MemoryMiB != a.MemoryMiB || !before.SavedAt().Equal(a.SavedAt()) || !maps.Equal(before.Compute, a.Compute) {
		tx.rebookAlloc(a)
	}
}

func (tx *Tx) allocGone(id string) {
	a := tx.Cluster.Alloc(id)
	if a == nil {
		return
	}
	tx.Capacity.books.plan.Ended()
	tx.turnover.leave(a, tx.Now())
	tx.Cluster.allocs.remove(a)
	tx.unbook(id)
	if a.Canary {
		tx.rebookGroup(a)
	}
}

// Confirm compares what is believed of a node with its allocs as Nomad listed them
// at an index, and reports whether both are the same. An alloc that is gone without a word
// is forgotten; news that has not come yet will come with the event stream.
func (s *State) Confirm(nodeID string, allocs []*nomad.Alloc, index uint64) bool {
	same := true
	s.Do(func(tx *Tx) {
		listed := map[string]bool{}
		for _, a := range allocs {
			listed[a.ID] = a.Holds()
			have := tx.Cluster.Alloc(a.ID)
			if a.Holds() && (have == nil || have.Stopping != a.Stopping) {
				same = false
			}
		}
		for id, a := range tx.Cluster.allocs.onNode[nodeID] {
			if listed[id] {
				continue
			}
			same = false
			if a.Index <= index {
				tx.allocGone(id)
				tx.version++
			}
		}
	})
	return same
}

// byID lists values in the order of their IDs.
func byID[V any](values map[string]V) []V {
	list := make([]V, 0, len(values))
	for _, id := range slices.Sorted(maps.Keys(values)) {
		list = append(list, values[id])
	}
	return list
}

// put enters a value below a key and an ID.
func put[K comparable, V any](index map[K]map[string]V, key K, id string, value V) {
	if index[key] == nil {
		index[key] = map[string]V{}
	}
	index[key][id] = value
}

// drop removes what put entered.
func drop[K comparable, V any](index map[K]map[string]V, key K, id string) {
	delete(index[key], id)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}
