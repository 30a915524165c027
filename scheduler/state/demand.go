// SPDX-License-Identifier: MPL-2.0

package state

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// arrivedKinds and arrivedTasks bound the memory of arrivals: beyond them all count half.
const arrivedKinds, arrivedTasks = 200, 10_000

// arrivals are the tasks that jobs asked for, for the next leader.
type arrivals struct {
	kinds []record.Arrived
	tasks int
	new   bool // since they were stored
}

func (a *arrivals) add(r *place.Request, tasks int) {
	one := record.ArrivedOf(r)
	one.Tasks = tasks
	if i := slices.IndexFunc(a.kinds, func(k record.Arrived) bool { return k.Same(&one) }); i >= 0 {
		a.kinds[i].Tasks += tasks
	} else {
		a.kinds = append(a.kinds, one)
	}
	a.tasks, a.new = a.tasks+tasks, true
	for len(a.kinds) > arrivedKinds || a.tasks > arrivedTasks {
		a.tasks = 0
		for i := range a.kinds {
			a.kinds[i].Tasks /= 2
			a.tasks += a.kinds[i].Tasks
		}
		a.kinds = slices.DeleteFunc(a.kinds, func(k record.Arrived) bool { return k.Tasks == 0 })
	}
}

// Arrived tells the planner of tasks that a job asks for, and keeps them for the next leader.
// No room is kept for the like of unkept ones: they wait for quota.
func (tx *Tx) Arrived(r *place.Request, tasks int, unkept bool) {
	if !unkept {
		for range tasks {
			tx.Planner().NoteArrival(r, tx.Now())
		}
	}
	tx.Planner().ArriveTogether(r, tasks)
	tx.arrivals.add(r, tasks)
}

// Demand is the tasks that jobs asked for, each as often as it came.
func (tx *Tx) Demand() (tasks []place.Request) {
	for i := range tx.arrivals.kinds {
		k := &tx.arrivals.kinds[i]
		for range k.Tasks {
			tasks = append(tasks, k.Request())
		}
	}
	return tasks
}

// recallDemand takes the demand and the turnover that an earlier leader stored.
func (tx *Tx) recallDemand(stored *record.History) {
	tx.arrivals = arrivals{kinds: slices.Clone(stored.Arrived)}
	for i := range tx.arrivals.kinds {
		tx.arrivals.tasks += tx.arrivals.kinds[i].Tasks
	}
	if stored.Turnover != nil {
		tx.Planner().ExpectEnds(*stored.Turnover)
	}
}
