package state

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// returning is an alloc that failed, in place of which Nomad starts another: at a later time
// (see reschedule in the job specification), or at once, of which nothing is known until it has.
type returning struct {
	alloc *nomad.Alloc
	cost  place.Charge
	since time.Time // when it was seen to have failed
}

// noteReturn remembers an alloc that ended if Nomad starts another in its place, and
// forgets one in whose place it has.
func (tx *Tx) noteReturn(a *nomad.Alloc) {
	before, known := tx.returning[a.ID]
	g := tx.group(a.Key(), a.Group)
	if !a.Failed || len(a.Devices) == 0 || g == nil || !g.Restarts {
		delete(tx.returning, a.ID)
		return
	}
	r := returning{alloc: a, cost: before.cost, since: before.since}
	if !known {
		r.cost, r.since = tx.costOf(a), tx.Now()
	}
	tx.returning[a.ID] = r
}

// costOf is what an alloc costs its queue, also where its node is gone.
func (tx *Tx) costOf(a *nomad.Alloc) place.Charge {
	if n := tx.nodes.byID[a.NodeID]; n != nil {
		return tx.Charge(a.NodeID, tx.takes(a, n))
	}
	if r := tx.Record(a.Key()); r != nil {
		return r.Groups[a.Group].Cost
	}
	return place.Charge{}
}

// forgetFailed forgets what failed and of which Nomad has not said in time that it starts again.
func (tx *Tx) forgetFailed() {
	for id, r := range tx.returning {
		if tx.jobs.byKey[r.alloc.Key()] == nil || !r.alloc.Returns && !tx.Within(r.since, Echo) {
			delete(tx.returning, id)
			tx.books.epoch++
			tx.version++
		}
	}
}

// Returning is what failed and Nomad starts again, in no order: as many allocs of a group as are
// not there and do not wait for room, of a job that is not stopped and a group that is not held.
func (r *Reader) Returning() []*Waiting {
	if len(r.returning) == 0 {
		return nil
	}
	type group struct {
		job  nomad.JobKey
		name string
	}
	of := map[group]*Waiting{}
	var list []*Waiting
	for _, f := range r.returning {
		at := group{f.alloc.Key(), f.alloc.Group}
		w := of[at]
		if w == nil {
			w = &Waiting{Job: at.job, Group: at.name}
			of[at] = w
			if j := r.jobs.byKey[at.job]; j != nil && !j.Stopped && j.Group(at.name) != nil && j.Group(at.name).Restarts && !r.isHeld(at.job, at.name) {
				w.Turn = turn(at.job, at.name, j.Priority, r.QueueOf(at.job, at.name), f.since)
				list = append(list, w)
			}
		}
		w.Missing++
		w.cost = w.cost.Larger(f.cost)
	}
	there := map[nomad.JobKey]map[string]int{}
	for _, w := range list {
		if there[w.Job] == nil {
			there[w.Job] = r.present(w.Job)
		}
		// Those that wait for room are often the same as those that are promised.
		absent := r.group(w.Job, w.Group).Count - there[w.Job][w.Group] - max(r.Missing(w.Job, w.Group), r.Assumed(w.Job, w.Group))
		w.Missing = min(w.Missing, max(0, absent))
	}
	return list
}
