package reconcile

import (
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Nomad starts the children of periodic jobs whatever their queue holds. Each that is too much is
// brought back, but holds its GPUs until it has stopped, and by then the clock may have started the
// next. So after the first one the job itself bears a hold, with which its children are born.

// startedAbove finds the periodic job of which Nomad started a child last of all in a queue that is
// above its limit, also where that is so only until something has stopped.
func startedAbove(tx *state.Tx, skip map[string]bool, queue string) *Item {
	var last *nomad.Alloc
	for _, u := range tx.HoldersIn(queue, func(key nomad.JobKey) bool { return periodicParent(tx, key) != nil }) {
		if a := tx.Alloc(u.ID); !a.Stopping && (last == nil || a.Created.After(last.Created)) {
			last = a
		}
	}
	if last == nil || slices.ContainsFunc(tx.AllocsOf(last.Key()), func(a *nomad.Alloc) bool { return a.Stopping && a.Group == last.Group }) {
		return nil // Nomad started it in place of one that it moves
	}
	return childrenWait(tx, skip, last, queue)
}

// periodicParent is the periodic job that a job is a child of; nil: it is none.
func periodicParent(tx *state.Tx, key nomad.JobKey) *nomad.Job {
	j := tx.Job(key)
	if j == nil || j.Parent == "" {
		return nil
	}
	if p := tx.Job(nomad.JobKey{Namespace: key.Namespace, ID: j.Parent}); p != nil && p.Periodic {
		return p
	}
	return nil
}

// childrenWait has further children of a periodic job wait before they start, where one of them
// took their queue above its limit; nil where they do already, and for other jobs.
func childrenWait(tx *state.Tx, skip map[string]bool, child *nomad.Alloc, queue string) *Item {
	parent := periodicParent(tx, child.Key())
	if parent == nil || skip[parent.Key.String()] {
		return nil
	}
	r := tx.Record(parent.Key)
	for i := range parent.Groups {
		g := &parent.Groups[i]
		q := tx.QueueOf(parent.Key, g.Name)
		onItsWay := r != nil && tx.UnderWay(r) && r.Groups[g.Name].Decision.Hold != nil
		if q == nil || !tx.IsWithin(q.Name, queue) || !g.GPU() || g.Was != nil && g.Was.Hold != "" || onItsWay {
			continue
		}
		text := fmt.Sprintf("children of the periodic job %s must wait before they start: %s", parent.Key, tx.OverQuota(queue, place.Charge{}))
		return hold(parent.Key, g.Name, nil, text, decide.ChildrenWait(fmt.Sprintf("a child of it took queue %s above its limit", queue)))
	}
	return nil
}
