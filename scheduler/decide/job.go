// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// mostGroups bounds what one job has decided at once.
const mostGroups = 500

// Job decides about the asks of one job: the record, and the answers in the order of the
// asks. Its placements are assumed from here on. When it fails, everything is as it was.
// It goes on while inTime has no error: nothing else is decided meanwhile.
func Job(inTime func() error, tx *state.Tx, key nomad.JobKey, asks []admit.Ask, have *record.Record) (*record.Record, []admit.Decision, error) {
	rollback := tx.Savepoint(key)
	next := record.New(key).Replacing(have)
	next.At, next.Index = tx.Now(), tx.Cluster.Index()
	if len(asks) > mostGroups {
		return nil, nil, &admit.Refusal{Status: http.StatusUnprocessableEntity,
			Text: fmt.Sprintf("the job has %d groups that ask for GPUs, and a job may have %d at most: submit it as several jobs", len(asks), mostGroups)}
	}
	before := atOnce{}
	for i := range asks {
		g, err := group(tx, key, &asks[i], have, before)
		if err == nil {
			err = inTime()
		}
		if err != nil {
			rollback()
			return nil, nil, withFits(tx, key, asks, i, err)
		}
		next.Groups[asks[i].Group] = g
	}
	holdGang(tx, key, asks, next.Groups)
	answers := make([]admit.Decision, len(asks))
	for i := range asks {
		answers[i] = next.Groups[asks[i].Group].Decision
		answers[i].Priority = bounded(tx, &asks[i])
	}
	return next, answers, nil
}

// bounded is the priority that counts of a group's, where its queue allows less; 0: all of it counts.
func bounded(tx *state.Tx, a *admit.Ask) int {
	if q, err := tx.Config().QueueFor(a.Namespace, a.Queue); err == nil && q != nil && q.MaxPriority < a.Priority {
		return q.MaxPriority
	}
	return 0
}

// group decides about one ask.
func group(tx *state.Tx, key nomad.JobKey, a *admit.Ask, have *record.Record, before atOnce) (record.Group, error) {
	q, err := tx.Config().QueueFor(a.Namespace, a.Queue)
	if err != nil {
		return record.Group{}, admit.Forbidden("group %q: %s", a.Group, err)
	}
	for _, t := range a.Tasks {
		if q != nil && t.SeatPriority > q.MaxPriority {
			return record.Group{}, admit.Forbidden("group %q, task %q: gpu.priority: %d is not valid (1 to %d: queue %s allows no more, max_priority)", a.Group, t.Task, t.SeatPriority, q.MaxPriority, q.Name)
		}
	}
	parts, err := blocks.PartsOf(tx, a, q)
	if err != nil {
		return record.Group{}, err
	}
	group := groupAsk{tx, key, a, q, parts}
	was, known := group.known(have)
	// A group that fell back is tried again. A group that has ended stays as it is: with other
	// preferences it would be another version for Nomad, which would run all of it again.
	same := known && was.FellBack.IsZero() && (tx.Cluster.Alive(key, have) || ended(tx, key) && was.Decision.Hold == nil)
	tx.Forget(key, a.Group)
	if same {
		group = group.asBefore(&was)
	}
	group, form, err := shape(group)
	if err != nil {
		if hold := awaited(group, err); hold != nil {
			return withRecut(group, heldUntilOneJoins(group, hold)), nil
		}
		return record.Group{}, withNotMade(group, err)
	}
	d := &decider{groupAsk: group, form: form}
	if !same {
		g, err := d.decideNew(before)
		g.Decision.Outcome = outcome(group, &g, 0)
		return withRecut(group, g), err
	}
	was.Direct, was.Again = false, was.Again || tx.Queue.CompletedOf(key, a.Group) > 0
	g, err := d.redecide(was, before)
	g.Decision.Outcome = outcome(group, &g, tx.Cluster.Live(key, a.Group))
	return g, err
}

// Accepted notes that Nomad has taken a job, for people and for the core: one that
// it refuses, because the caller may not submit, is no demand.
func Accepted(tx *state.Tx, key nomad.JobKey, asks []admit.Ask) {
	tx.Settled(key)
	r := tx.Queue.Record(key)
	if r == nil {
		return
	}
	for i := range asks {
		g, known := r.Groups[asks[i].Group]
		if !known || !tx.NoteDecision(g.Shown) {
			continue // an unchanged job that came again is no new demand
		}
		if !asks[i].Later { // its children arrive
			h := g.Decision.Hold
			arrive(tx, &asks[i], asks[i].Count, h != nil && h.Kind == view.WaitsForQuota)
		}
	}
	tx.Changed()
}

// arrive counts the tasks of an ask as demand: each of its allocs is one arrival per part.
func arrive(tx *state.Tx, a *admit.Ask, tasks int, unkept bool) {
	for _, p := range demand(tx, a) {
		tx.Arrived(&p.Req, tasks, unkept)
	}
}

// largeGroup is how many tasks of a recorded group count: more would say no more of the mix.
const largeGroup = 1000

// Learn makes the past demand of a cluster the core's prior demand, its best guess of the
// future: the tasks that earlier leaders counted, or those of the jobs that are recorded, if
// these are more.
func Learn(tx *state.Tx) {
	var history []place.Request
	for _, key := range tx.Queue.Recorded(state.Recorded) {
		r := tx.Queue.Record(key)
		for _, name := range slices.Sorted(maps.Keys(r.Groups)) {
			g := r.Groups[name]
			for _, p := range demand(tx, &g.Ask) {
				for range min(g.Ask.Count, largeGroup) {
					history = append(history, p.Req)
				}
			}
		}
	}
	if counted := tx.Demand(); len(counted) >= len(history) {
		history = counted
	}
	if len(history) > 0 {
		tx.Planner().Learn(history)
	}
}

// demand is the parts of an ask; nothing where it is not allowed any more.
func demand(tx *state.Tx, a *admit.Ask) []blocks.Part {
	group, _ := newGroupAsk(tx, nomad.JobKey{}, a)
	return group.parts
}

// ended reports whether a job has ended by itself.
func ended(tx *state.Tx, key nomad.JobKey) bool {
	j := tx.Cluster.Job(key)
	return j != nil && j.Ended
}
