// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// evict makes room for a waiting alloc, in an order in which the room cannot
// go astray. Nothing is done on a belief: the node's allocs are read again
// first, since Nomad does not tell of all that go.
//
//  1. the room is booked for the one that waits, so that no admission takes it;
//  2. the victims' jobs wait, or leave the node out, so that no replacement of a victim
//     takes the room back in the very plan that stops it;
//  3. its job is let go, and prefers the node;
//  4. it is recorded which victims have to go, for which job and why; if that fails, none is stopped;
//  5. the victims are stopped.
//
// The nodes are taken back in once the one that waited runs. An eviction that
// fails halfway is given up: victims that were stopped are started elsewhere,
// or here again, by Nomad itself.
func (l *Loop) evict(ctx context.Context, item *Item) bool {
	e := item.Evict
	dryRun := l.Config().Preemption.DryRun
	if !dryRun && l.limiter.Tokens() < float64(l.budget(e)) || !l.confirmed(ctx, item) {
		return false
	}
	if dryRun {
		return l.wouldEvict(item)
	}
	if !l.mayEvict(e) {
		return false
	}
	l.assume(e.Promises...)
	if err := l.carryOut(ctx, item); err != nil {
		l.forget(e.Promises...)
		l.report("evict for job "+item.Job.String(), err)
		return false
	}
	return true
}

// bringBack has a group wait for its quota, on all nodes or on one, and stops what runs of it: a
// constraint that no node meets does not stop anything by itself.
func (l *Loop) bringBack(ctx context.Context, item *Item) bool {
	if l.Config().Preemption.DryRun {
		return l.wouldEvict(item)
	}
	if !l.mayEvict(item.Evict) {
		return false
	}
	_, err := l.revise(ctx, item.Job, item.Revision)
	if err == nil {
		err = l.stop(ctx, item)
	}
	l.report("hold job "+item.Job.String(), err)
	return err == nil
}

// mayEvict counts victims against the rate that the operator allows.
func (l *Loop) mayEvict(e *decide.Eviction) bool {
	return l.limiter.AllowN(time.Now(), l.budget(e))
}

// budget is how much of that rate victims take: all of it, where there are more of them.
func (l *Loop) budget(e *decide.Eviction) int { return min(len(e.Victims), l.limiter.Burst()) }

// wouldEvict tells of a dry run, once a minute.
func (l *Loop) wouldEvict(item *Item) bool {
	l.note(item, true)
	l.skip[item.Job.String()] = time.Now().Add(time.Minute)
	return true
}

// assume books the room of promises.
func (l *Loop) assume(promises ...decide.Promise) {
	l.State.Do(func(tx *state.Tx) {
		for _, p := range promises {
			p.Assume(tx)
		}
	})
}

// forget ends promises that could not be kept.
func (l *Loop) forget(promises ...decide.Promise) {
	l.State.Do(func(tx *state.Tx) {
		for _, p := range promises {
			p.Forget(tx)
		}
	})
}

// stop records which victims have to go and why, and then stops them. It ends at the first that cannot
// be stopped. Nothing is stopped if the record cannot be written.
func (l *Loop) stop(ctx context.Context, item *Item) error {
	l.note(item, false)
	if err := l.tell(ctx); err != nil {
		return err
	}
	for i, v := range item.Evict.Victims {
		if err := l.stopAlloc(ctx, &v); err != nil {
			l.noteFailed(err, item.Evict.Victims[i:], kindOf(item))
			return err
		}
	}
	return nil
}

// stopAlloc stops an alloc, without its shutdown_delay where that is longer than any is waited for. Of a
// child all allocs are stopped by its counts.
func (l *Loop) stopAlloc(ctx context.Context, v *decide.Victim) error {
	if l.isScaled(v.Job) {
		return l.rescale(ctx, v.Job)
	}
	atOnce := false
	l.State.Do(func(tx *state.Tx) { atOnce = tx.Cluster.StopsLate(v.AllocID) })
	return l.Actor.Stop(ctx, v.AllocID, atOnce)
}

// isScaled reports whether a job is a child that is held and let go by its counts.
func (l *Loop) isScaled(key nomad.JobKey) (yes bool) {
	l.State.View(func(r *state.Reader) { yes = r.Cluster.Scaled(key) })
	return yes
}

// noteFailed records that victims were not stopped, contrary to what note said: the first could not be,
// and the others were not tried.
func (l *Loop) noteFailed(err error, victims []decide.Victim, kind string) {
	l.State.Do(func(tx *state.Tx) {
		for i, v := range victims {
			why := "another alloc could not be stopped first"
			if i == 0 {
				why = err.Error()
			}
			tx.Note(view.Event{
				Kind: kind, Namespace: v.Job.Namespace, JobID: v.Job.ID, AllocID: v.AllocID, Failed: true,
				Text: fmt.Sprintf("alloc %s of job %s was not stopped, as far as is known: %s", v.AllocID, v.Job, why),
			})
		}
	})
}

// confirmed reports whether the nodes are as they were when the victims were
// chosen.
func (l *Loop) confirmed(ctx context.Context, item *Item) bool {
	seen := map[string]bool{}
	for _, v := range item.Evict.Victims {
		if seen[v.Node] {
			continue
		}
		seen[v.Node] = true
		allocs, index, err := l.Actor.Allocs(ctx, v.Node)
		if err != nil {
			l.report("read the node before evicting for job "+item.Job.String(), err)
			return false
		}
		if !l.State.Confirm(v.Node, allocs, index) {
			l.Logger.Info("no eviction: the node is not as it was", "node", v.Node, "job", item.Job.String())
			return false
		}
	}
	return true
}

func (l *Loop) carryOut(ctx context.Context, item *Item) error {
	e := item.Evict
	if err := l.keepOff(ctx, e); err != nil {
		return err
	}
	if item.Revision.Prefer != "" || len(item.Revision.RoomMade) > 0 {
		if _, err := l.revise(ctx, item.Job, item.Revision); err != nil {
			return fmt.Errorf("book the room for job %q: %w", item.Job, err)
		}
	}
	return l.stop(ctx, item)
}

// keepOff has the victims' jobs leave the room out, or wait.
func (l *Loop) keepOff(ctx context.Context, e *decide.Eviction) error {
	done := map[string]bool{}
	for i := range e.Victims {
		v := &e.Victims[i]
		off := e.KeptOff(v)
		r := decide.Revision{Group: v.Group, Exclude: off, Prefer: v.To, For: e.Job.String()}
		at := v.Job.String() + "/" + v.Group + "/" + strings.Join(off, " ")
		switch {
		case v.Gang, l.isScaled(v.Job): // all of it goes, and comes back as one
			r = decide.Revision{Group: v.Group, Hold: &admit.Hold{Kind: view.WaitsForRoom, Sentence: "it made room for a job that goes first, and all of it starts together"}}
			at = v.Job.String()
		case v.Quota != "": // what else runs of the group goes on: a hold stops nothing
			r = decide.Revision{Group: v.Group, Hold: givesUpQuota(v.Quota)}
			at = v.Job.String() + "/" + v.Group
		case v.Hold != nil:
			r = decide.Revision{Group: v.Group, Hold: v.Hold}
			at = v.Job.String() + "/" + v.Group
		}
		if done[at] {
			continue
		}
		done[at] = true
		if _, err := l.revise(ctx, v.Job, r); err != nil {
			return fmt.Errorf("keep job %q off the node: %w", v.Job, err)
		}
	}
	return nil
}

// givesUpQuota is the hold of work whose quota goes to a higher priority.
func givesUpQuota(queue string) *admit.Hold {
	return &admit.Hold{Kind: view.WaitsForQuota, Sentence: fmt.Sprintf("a job with a higher priority goes first in queue %s", queue)}
}

// kindOf is the kind of the events that tell of an item.
func kindOf(item *Item) string {
	switch {
	case item.Revision.Hold != nil || len(item.Revision.Only) > 0:
		return "hold"
	case item.Evict.Moves:
		return "move"
	case item.Evict.Idle:
		return "idle"
	case item.Evict.Reclaim:
		return "reclaim"
	}
	return "evict"
}

// note records for people which victims have to go, for which job and why, before they are stopped.
func (l *Loop) note(item *Item, dryRun bool) {
	e, kind, whom := item.Evict, kindOf(item), ""
	if kind != "hold" {
		whom = e.Job.String()
	}
	l.Logger.Info("eviction", "kind", kind, "dry_run", dryRun, "text", e.Text)
	l.State.Do(func(tx *state.Tx) {
		for _, v := range e.Victims {
			tx.Note(view.Event{
				Kind: kind, Namespace: v.Job.Namespace, JobID: v.Job.ID, AllocID: v.AllocID,
				For: whom, Text: v.Text, DryRun: dryRun,
			})
		}
	})
}
