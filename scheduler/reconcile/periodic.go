// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Nomad starts the children of periodic jobs whatever their queue holds. Each child above the limit
// is brought back, but holds its GPUs until it has stopped, and by then the clock may have started
// the next. So after the first one the job itself bears a hold, with which its children are born.

// recent is for how long what Nomad started may be why a queue is above its limit, also where
// something else is to stop for it.
const recent = time.Minute

// parentAbove finds a periodic job whose children are to wait, as one of them is too much for a
// queue. It comes before all that is brought back, and whatever may be evicted: Nomad starts the next
// child meanwhile.
func parentAbove(tx *state.Tx, skip map[string]bool) (item *Item) {
	queues := tx.Config().Queues
	for i := range queues {
		if queue := queues[i].Name; item == nil && tx.Queue.Exceeds(queue) {
			tx.Try(func() {
				if item = startedAbove(tx, skip, queue); item == nil {
					item = parentOfExcess(tx, skip, queue)
				}
			})
		}
	}
	return item
}

// startedAbove finds the periodic job of one of the children that Nomad started last in a queue
// which is above its limit, also where that is so only until something has stopped.
func startedAbove(tx *state.Tx, skip map[string]bool, queue string) *Item {
	var started []*nomad.Alloc
	for _, u := range tx.Queue.HoldersIn(queue, func(key nomad.JobKey) bool { return periodicParent(tx, key) != nil }) {
		if a := tx.Cluster.Alloc(u.ID); !a.Stopping && tx.Within(a.Created, recent) && !inPlaceOfOne(tx, a) {
			started = append(started, a)
		}
	}
	slices.SortStableFunc(started, func(x, y *nomad.Alloc) int { return y.Created.Compare(x.Created) })
	for _, a := range started {
		if !tx.Queue.Exceeds(queue) {
			return nil
		}
		if item := childrenWait(tx, skip, a, queue); item != nil {
			return item
		}
		defer tx.Without(slices.Values([]*nomad.Alloc{a}))()
	}
	return nil
}

// inPlaceOfOne reports whether Nomad may have started an alloc in place of one that it moves.
func inPlaceOfOne(tx *state.Tx, a *nomad.Alloc) bool {
	return slices.ContainsFunc(tx.Cluster.AllocsOf(a.Key()), func(other *nomad.Alloc) bool { return other.Stopping && other.Group == a.Group })
}

// parentOfExcess finds the periodic job of a child that will be brought back: it looks at the
// queue's holders, in the order of [tooMuch].
func parentOfExcess(tx *state.Tx, skip map[string]bool, queue string) *Item {
	defer tx.Without(leaving(tx))()
	for _, u := range tx.Queue.HoldersIn(queue, func(key nomad.JobKey) bool { return mayHold(tx, key) }) {
		a := tx.Cluster.Alloc(u.ID)
		if !tx.Queue.Exceeds(queue) {
			return nil
		}
		if item := childrenWait(tx, skip, a, queue); item != nil {
			return item
		}
		if isSystem(tx, a.Key()) || tx.Cluster.Stoppable(a) {
			defer tx.Without(slices.Values([]*nomad.Alloc{a}))()
		}
	}
	return nil
}

// periodicParent is the periodic job that a job is a child of; nil: it is none.
func periodicParent(tx *state.Tx, key nomad.JobKey) *nomad.Job {
	j := tx.Cluster.Job(key)
	if j == nil || j.Parent == "" {
		return nil
	}
	if p := tx.Cluster.Job(nomad.JobKey{Namespace: key.Namespace, ID: j.Parent}); p != nil && p.Periodic {
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
	r := tx.Queue.Record(parent.Key)
	for i := range parent.Groups {
		g := &parent.Groups[i]
		q := tx.Cluster.QueueOf(parent.Key, g.Name)
		onItsWay := r != nil && tx.Queue.UnderWay(r) && r.Groups[g.Name].Decision.Hold != nil
		if q == nil || !tx.Config().Within(q.Name, queue) || !g.GPU() || g.Was != nil && g.Was.Hold != "" || onItsWay {
			continue
		}
		text := fmt.Sprintf("children of the periodic job %s must wait before they start: %s", parent.Key, tx.Queue.OverQuota(queue, place.Charge{}))
		return hold(parent.Key, g.Name, nil, text, decide.ChildrenWait(fmt.Sprintf("a child of it took queue %s above its limit", queue)))
	}
	return nil
}

// mostChildren is how many children of a periodic job that is held wait at once.
const mostChildren = 100

// crowded finds a periodic job that is held and has that many waiting children.
func crowded(tx *state.Tx, waiting []*state.Waiting, skip map[string]bool) *Item {
	if len(waiting) < mostChildren {
		return nil
	}
	children := map[nomad.JobKey]map[string]bool{}
	for _, w := range waiting {
		p := periodicParent(tx, w.Job)
		if p == nil || !p.Overlaps || skip[p.Key.String()] || !slices.ContainsFunc(p.Groups, func(g nomad.Group) bool { return g.Was != nil && g.Was.Hold != "" }) {
			continue
		}
		if children[p.Key] == nil {
			children[p.Key] = map[string]bool{}
		}
		if children[p.Key][w.Job.ID] = true; len(children[p.Key]) < mostChildren {
			continue
		}
		text := fmt.Sprintf("%d children of the periodic job %s wait: Nomad starts no further one until they have run (prohibit_overlap)", mostChildren, p.Key)
		return &Item{Job: p.Key, Evict: &decide.Eviction{Text: text}, NoOverlap: true}
	}
	return nil
}

// endOverlap has Nomad start no child of a periodic job while another one waits or runs. The job
// rests then, until the news of it is there.
func (l *Loop) endOverlap(ctx context.Context, item *Item) bool {
	if l.Config().Preemption.DryRun {
		return l.wouldEvict(item)
	}
	body, err := l.Actor.Read(ctx, item.Job)
	var job *admit.Job
	if err == nil {
		job, err = admit.Read(body, admit.Query{Namespace: item.Job.Namespace, Devices: l.Config().DeviceNames()})
	}
	if err == nil {
		body, err = job.WithoutOverlap()
	}
	if err == nil {
		err = l.Actor.Register(ctx, item.Job, body)
	}
	if err == nil {
		l.note(item, false)
	}
	l.report("prohibit overlap of children of job "+item.Job.String(), err)
	return false
}
