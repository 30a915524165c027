// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// bringBack finds a group that was not admitted as it is in a queue which holds
// more than its limit, and has it wait for quota as it would have had to in the
// first place: what Nomad started by itself, and with hold_direct_jobs what came
// around the service. Work that is about to end counts as gone.
func bringBack(tx *state.Tx, skip map[string]bool) (item *Item) {
	queues := tx.Config().Queues
	if !slices.ContainsFunc(queues, func(q config.Queue) bool { return tx.Queue.Exceeds(q.Name) }) {
		return nil
	}
	tx.Try(func() {
		defer tx.Without(leaving(tx))()
		for i := range queues {
			if queue := queues[i].Name; item == nil && tx.Queue.Exceeds(queue) {
				item = tooMuch(tx, skip, queue)
			}
		}
	})
	if item == nil {
		item = beforeItsTime(tx, skip)
	}
	return item
}

// beforeItsTime finds a group with an alloc that has been stopping for so long that its
// queue, which is above its limit, has to pay for it as well as for the one started in its
// place. As many of the youngest allocs go, and come back when the others have ended.
func beforeItsTime(tx *state.Tx, skip map[string]bool) *Item {
	for key, groups := range lingering(tx) {
		if skip[key.String()] || tx.Queue.Record(key) == nil || tx.Cluster.Unchangeable(key) || isSystem(tx, key) || tx.Queue.UnderWay(tx.Queue.Record(key)) {
			continue
		}
		for _, group := range slices.Sorted(maps.Keys(groups)) {
			if item := besideLingering(tx, key, group, groups[group]); item != nil {
				return item
			}
		}
	}
	return nil
}

// lingering counts what lingers of each group, in the order of their jobs.
func lingering(tx *state.Tx) iter.Seq2[nomad.JobKey, map[string]int] {
	count := map[nomad.JobKey]map[string]int{}
	for a := range tx.Cluster.Lingering() {
		if count[a.Key()] == nil {
			count[a.Key()] = map[string]int{}
		}
		count[a.Key()][a.Group]++
	}
	keys := slices.SortedFunc(maps.Keys(count), func(x, y nomad.JobKey) int { return strings.Compare(x.String(), y.String()) })
	return func(yield func(nomad.JobKey, map[string]int) bool) {
		for _, key := range keys {
			if !yield(key, count[key]) {
				return
			}
		}
	}
}

// besideLingering has a group wait if its queue is above its limit by the allocs started in
// place of lingering ones.
func besideLingering(tx *state.Tx, key nomad.JobKey, group string, n int) (item *Item) {
	gang := tx.Cluster.IsGang(key, group)
	victims := stoppable(tx, key, func(g string) bool { return g == group || gang && tx.Cluster.IsGang(key, g) })
	queue := tx.Cluster.QueueOf(key, group)
	if len(victims) == 0 || queue == nil {
		return nil
	}
	tx.Try(func() {
		defer tx.Without(func(yield func(*nomad.Alloc) bool) {
			lingers := slices.Collect(tx.Cluster.Lingering())
			for a := range leaving(tx) {
				if !(a.Key() == key && a.Group == group && slices.Contains(lingers, a)) && !yield(a) {
					return
				}
			}
		})()
		for q := queue; q != nil; q = tx.Config().Queue(q.Parent) {
			if !tx.Queue.Exceeds(q.Name) {
				continue
			}
			if !gang && len(victims) > n {
				slices.SortFunc(victims, func(x, y decide.Victim) int {
					return cmp.Or(tx.Cluster.Alloc(y.AllocID).Created.Compare(tx.Cluster.Alloc(x.AllocID).Created), strings.Compare(y.AllocID, x.AllocID))
				})
				victims = victims[:n]
			}
			for i := range victims {
				victims[i].Queue = q.Name
			}
			why := tx.Queue.OverQuota(q.Name, place.Charge{})
			text := fmt.Sprintf("group %s of job %s must wait until what it replaces has ended: %s", group, key, why)
			item = hold(key, group, victims, text, &admit.Hold{Kind: view.WaitsForQuota, Sentence: why + ", with what this replaces and what has not ended"})
			return
		}
	})
	return item
}

// tooMuch is the next work that has to wait in a queue that holds more than its limit.
func tooMuch(tx *state.Tx, skip map[string]bool, queue string) *Item {
	if item := withoutCanaries(tx, skip, queue); item != nil {
		return item
	}
	for _, u := range tx.Queue.HoldersIn(queue, func(key nomad.JobKey) bool { return mayHold(tx, key) }) {
		switch a := tx.Cluster.Alloc(u.ID); {
		case a.Stopping || skip[a.Key().String()]:
		case !isSystem(tx, a.Key()) && !tx.Cluster.Stoppable(a):
		case isSystem(tx, a.Key()):
			return shrink(tx, a, u.Priority, queue)
		default:
			return restraint(tx, a, u.Priority, queue)
		}
	}
	return nil
}

// withoutCanaries finds a group whose canaries put its queue above its limit, beside what
// they are to replace: whether an update replaces anything is seen only when it does. The
// canaries go, and come back when the queue can pay for them; the version that runs goes on.
func withoutCanaries(tx *state.Tx, skip map[string]bool, queue string) *Item {
	for _, u := range tx.Queue.HoldersIn(queue, func(key nomad.JobKey) bool { return tx.Queue.Record(key) != nil && !tx.Cluster.Unchangeable(key) }) {
		a := tx.Cluster.Alloc(u.ID)
		if !a.Canary || skip[a.Key().String()] || !tx.Cluster.Stoppable(a) {
			continue
		}
		why := tx.Queue.OverQuota(queue, place.Charge{})
		victims := slices.DeleteFunc(stoppable(tx, a.Key(), func(group string) bool { return group == a.Group }), func(v decide.Victim) bool { return !tx.Cluster.Alloc(v.AllocID).Canary })
		for i := range victims {
			victims[i].Priority, victims[i].Queue = u.Priority, queue
		}
		text := fmt.Sprintf("the canaries of group %s of job %s, which run beside what they are to replace, must wait: %s", a.Group, a.Key(), why)
		return hold(a.Key(), a.Group, victims, text, &admit.Hold{Kind: view.WaitsForQuota, Sentence: why})
	}
	return nil
}

// isSystem reports whether Nomad starts a job on every node, also on those that join.
func isSystem(tx *state.Tx, key nomad.JobKey) bool {
	j := tx.Cluster.Job(key)
	return j != nil && (j.Type == "system" || j.Type == "sysbatch")
}

// shrink takes a system group off the node of an alloc, and lets it start on no
// other.
func shrink(tx *state.Tx, of *nomad.Alloc, priority int, queue string) *Item {
	why := tx.Queue.OverQuota(queue, place.Charge{})
	text := fmt.Sprintf("group %s of job %s, which starts on every node, must leave node %s: %s", of.Group, of.Key(), tx.Cluster.Node(of.NodeID).Plan.Name, why)
	e := &decide.Eviction{Text: text}
	for _, a := range tx.Cluster.AllocsOf(of.Key()) {
		if a.Group == of.Group && a.NodeID == of.NodeID && !a.Stopping {
			e.Victims = append(e.Victims, decide.Victim{AllocID: a.ID, Job: a.Key(), Group: a.Group, Node: a.NodeID, Priority: priority, Queue: queue, Text: text})
		}
	}
	return &Item{Job: of.Key(), Evict: e, Revision: decide.HoldToNodes(tx, of.Key(), of.Group, of.NodeID)}
}

// widen finds a system group that may start on more nodes than it is held to.
func widen(tx *state.Tx, waiting []*state.Waiting, skip map[string]bool) *Item {
	for _, key := range tx.Queue.Recorded(state.HeldTo) {
		r := tx.Queue.Record(key)
		if skip[key.String()] || tx.Queue.UnderWay(r) || !isSystem(tx, key) {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(r.Groups)) {
			g := r.Groups[name]
			if len(g.Only) == 0 || slices.ContainsFunc(waiting, func(w *state.Waiting) bool { return sameQueue(tx, key, name, w) }) {
				continue
			}
			if revision, may := decide.Widen(tx, key, &g); may {
				return &Item{Job: key, Revision: revision}
			}
		}
	}
	return nil
}

// sameQueue reports whether what waits is paid for by the queue of a group: it goes
// first.
func sameQueue(tx *state.Tx, key nomad.JobKey, group string, w *state.Waiting) bool {
	q := tx.Cluster.QueueOf(key, group)
	return q != nil && w.Job != key && tx.Config().SharedLimit(w.Turn.Queue, q.Name) != ""
}

// mayHold reports whether a job that runs may be made to wait for quota. Nomad does not allow that for
// jobs dispatched around the service. It may be done to what Nomad started by itself: a child, a system job on a node that
// joined, a version that bears the service's marks and was not admitted, such as after a revert, and a
// job whose completed allocs Nomad ran again. With hold_direct_jobs, it may be done to every job that
// came around the service.
func mayHold(tx *state.Tx, key nomad.JobKey) bool {
	j := tx.Cluster.Job(key)
	if j == nil || tx.Cluster.Unchangeable(key) {
		return false
	}
	if j.Parent != "" || tx.Queue.RunsAgain(key) || j.Marked() && (tx.Queue.Direct(key) || isSystem(tx, key)) {
		return true
	}
	return tx.Config().Preemption.HoldDirect && tx.Queue.Direct(key)
}

// leaving are the allocs that are about to end: Nomad wants them to, or their group was
// held a moment ago.
func leaving(tx *state.Tx) iter.Seq[*nomad.Alloc] {
	return func(yield func(*nomad.Alloc) bool) {
		for a := range tx.Cluster.Allocs() {
			r := tx.Queue.Record(a.Key())
			if (a.Stopping || r != nil && tx.Within(r.At, mayLeave(r, a))) && !yield(a) {
				return
			}
		}
	}
}

// mayLeave is for how long after the last decision an alloc may be about to be stopped
// because it is held off its node; 0: it is not. A hold alone stops nothing, and an alloc that was
// stopped with it is known as soon as Nomad tells.
func mayLeave(r *record.Record, a *nomad.Alloc) time.Duration {
	switch g := r.Groups[a.Group]; {
	case g.Decision.Hold != nil:
		return state.Echo
	case len(g.Only) > 0 && !slices.Contains(g.Only, a.NodeID):
		return state.Unplaced
	}
	return 0
}

// restraint holds the whole group of an alloc: Nomad has no way to hold less.
func restraint(tx *state.Tx, of *nomad.Alloc, priority int, queue string) *Item {
	why := tx.Queue.OverQuota(queue, place.Charge{})
	origin := "which Nomad started"
	switch {
	case tx.Queue.Direct(of.Key()):
		origin = "which came around the service"
	case tx.Queue.RunsAgain(of.Key()):
		origin = "of which Nomad runs again what had completed"
	}
	victims := stoppable(tx, of.Key(), func(group string) bool {
		together := tx.Cluster.IsGang(of.Key(), of.Group) && tx.Cluster.IsGang(of.Key(), group)
		return group == of.Group || together
	})
	for i := range victims {
		victims[i].Priority, victims[i].Queue = priority, queue
	}
	text := fmt.Sprintf("group %s of job %s, %s, must wait: %s", of.Group, of.Key(), origin, why)
	return hold(of.Key(), of.Group, victims, text, &admit.Hold{Kind: view.WaitsForQuota, Sentence: why})
}

// hold has a group wait, and stops what runs of it.
func hold(key nomad.JobKey, group string, victims []decide.Victim, text string, why *admit.Hold) *Item {
	for i := range victims {
		victims[i].Text = text
	}
	return &Item{Job: key, Evict: &decide.Eviction{Victims: victims, Text: text}, Revision: decide.Revision{Group: group, Hold: why}}
}

// stoppable lists the allocs of some groups of a job that may be stopped; none where none of them
// has a GPU. A gang goes with all that it has: the rest of an earlier version, without GPUs,
// would be a part of it that runs.
func stoppable(tx *state.Tx, key nomad.JobKey, picked func(group string) bool) []decide.Victim {
	var list []decide.Victim
	onGPUs := false
	for _, a := range tx.Cluster.AllocsOf(key) {
		if picked(a.Group) && (tx.Cluster.Stoppable(a) || tx.Cluster.IsGang(key, a.Group) && !a.Stopping && !isSystem(tx, key)) {
			onGPUs = onGPUs || tx.Cluster.Stoppable(a)
			list = append(list, decide.Victim{AllocID: a.ID, Job: key, Group: a.Group, Node: a.NodeID, Priority: tx.Cluster.PriorityOf(key)})
		}
	}
	if !onGPUs {
		return nil
	}
	slices.SortFunc(list, func(x, y decide.Victim) int {
		return cmp.Or(strings.Compare(x.Group, y.Group), strings.Compare(x.AllocID, y.AllocID))
	})
	return list
}

// partialFor is how long a gang may run in part: Nomad may be about to start the
// rest.
const partialFor = time.Minute

// brokenGang finds a gang with too few running allocs, and has it wait as a whole.
func brokenGang(tx *state.Tx, waiting []*state.Waiting, skip map[string]bool) *Item {
	for _, w := range waiting {
		if w.Alike != "" {
			continue // no gang is like another job
		}
		r := tx.Queue.Record(w.Job)
		if r == nil || skip[w.Job.String()] || tx.Queue.Drifted(w.Job) && !tx.Queue.Outgrown(w.Job) || tx.Cluster.Unchangeable(w.Job) || !tx.Queue.Repeats(w.Job).May() || tx.Now().Sub(w.Turn.Since) < partialFor || len(tx.Capacity.AssumedOf(w.Job)) > 0 {
			continue
		}
		g, known := r.Groups[w.Group]
		if !known || !g.Ask.Gang || g.Decision.Hold != nil {
			continue
		}
		g.Ask.Count = max(g.Ask.Count, tx.Cluster.Job(w.Job).Group(w.Group).Count) // it may be scaled around the service
		started := tx.Cluster.LiveAsAsked(w.Job, w.Group)
		earlier := tx.Cluster.Live(w.Job, w.Group) - started // one that runs as a whole goes on
		if started >= g.Ask.Together() || earlier >= g.Ask.Together() {
			continue
		}
		victims := stoppable(tx, w.Job, func(group string) bool { return tx.Cluster.IsGang(w.Job, group) })
		if len(victims) == 0 {
			continue
		}
		why := decide.SentBack(started, &g.Ask, tx.Cluster.Blocked(w.Job).Why[w.Group])
		item := hold(w.Job, w.Group, victims, fmt.Sprintf("job %s goes back as one: %s", w.Job, why), &admit.Hold{Kind: view.WaitsForRoom, Sentence: why})
		item.Revision.SentBack = why
		return item
	}
	return nil
}
