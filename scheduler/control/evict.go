package control

import (
	"context"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// evict makes room for a waiting alloc, in an order in which the room cannot
// go astray. Nothing is done on a belief: the node's allocs are read again
// first, since Nomad does not tell of each that goes.
//
//  1. the room is booked for the one that waits, so that no admission takes it;
//  2. its job is made to prefer the node;
//  3. the victims' jobs leave the node out, so that no replacement of a victim
//     takes the room back in the very plan that stops it, and so do jobs that wait
//     and that Nomad would give the room first;
//  4. the victims are stopped. Nomad then unblocks by priority.
//
// The nodes are taken back in once the one that waited runs. An eviction that
// fails halfway is given up: victims that were stopped are started elsewhere,
// or here again, by Nomad itself.
func (l *Loop) evict(ctx context.Context, due *decide.Due) bool {
	e := due.Evict
	if !l.confirmed(ctx, due) {
		return false
	}
	if l.Config().Preemption.DryRun {
		return l.wouldEvict(due)
	}
	if !l.mayEvict(e) {
		return false
	}
	for _, p := range e.Promises {
		l.Book.Promise(p)
	}
	if err := l.carryOut(ctx, due); err != nil {
		for _, p := range e.Promises {
			l.Book.Withdraw(p)
		}
		l.report("evict for job "+due.Job.String(), err)
		return false
	}
	l.note(due, false)
	return true
}

// bringBack has a group wait for its quota, and stops what runs of it: a
// constraint that no node meets does not stop anything by itself.
func (l *Loop) bringBack(ctx context.Context, due *decide.Due) bool {
	if l.Config().Preemption.DryRun {
		return l.wouldEvict(due)
	}
	if !l.mayEvict(due.Evict) {
		return false
	}
	_, err := l.revise(ctx, due.Job, due.Revision)
	if err == nil {
		err = l.stop(ctx, due.Evict)
	}
	if err != nil {
		l.report("hold job "+due.Job.String(), err)
		return false
	}
	l.note(due, false)
	return true
}

// mayEvict counts victims against the rate that the operator allows.
func (l *Loop) mayEvict(e *decide.Eviction) bool {
	return l.limiter.AllowN(time.Now(), min(len(e.Victims), l.limiter.Burst()))
}

// wouldEvict tells of a dry run, once a minute.
func (l *Loop) wouldEvict(due *decide.Due) bool {
	l.note(due, true)
	l.skip[due.Job.String()] = time.Now().Add(time.Minute)
	return true
}

func (l *Loop) stop(ctx context.Context, e *decide.Eviction) error {
	for _, v := range e.Victims {
		if err := l.Actor.Stop(ctx, v.AllocID); err != nil {
			return err
		}
	}
	return nil
}

// confirmed reports whether the nodes are as they were when the victims were
// chosen.
func (l *Loop) confirmed(ctx context.Context, due *decide.Due) bool {
	seen := map[string]bool{}
	for _, v := range due.Evict.Victims {
		if seen[v.Node] {
			continue
		}
		seen[v.Node] = true
		allocs, index, err := l.Actor.Allocs(ctx, v.Node)
		if err != nil {
			l.report("read the node before evicting for job "+due.Job.String(), err)
			return false
		}
		if !l.Book.Confirm(v.Node, allocs, index) {
			l.Logger.Info("no eviction: the node is not as it was", "node", v.Node, "job", due.Job.String())
			return false
		}
	}
	return true
}

func (l *Loop) carryOut(ctx context.Context, due *decide.Due) error {
	e := due.Evict
	if due.Revision.Prefer != "" {
		if _, err := l.revise(ctx, due.Job, due.Revision); err != nil {
			return err
		}
	}
	for _, r := range e.Rivals {
		if _, err := l.revise(ctx, r.Job, decide.Revision{Group: r.Group, Exclude: r.Node, For: e.Job.String()}); err != nil {
			return fmt.Errorf("keep job %q off the room: %w", r.Job, err)
		}
	}
	done := map[string]bool{}
	for _, v := range e.Victims {
		r := decide.Revision{Group: v.Group, Exclude: v.Node, For: e.Job.String()}
		at := v.Job.String() + "/" + v.Group + "/" + v.Node
		if v.Gang { // all of it goes, and comes back as one
			r = decide.Revision{Group: v.Group, Hold: &admit.Hold{Kind: view.WaitsForRoom, Sentence: "it made room for a job that goes first, and its allocs start together"}}
			at = v.Job.String()
		}
		if v.Quota && !v.Gang { // what else runs of the group goes on: a hold stops nothing
			r = decide.Revision{Group: v.Group, Hold: &admit.Hold{Kind: view.WaitsForQuota, Sentence: fmt.Sprintf("a job with a higher priority goes first in queue %s", v.Queue)}}
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
	return l.stop(ctx, e)
}

// kindOf is the kind of the event that tells of what is due.
func kindOf(due *decide.Due) string {
	switch {
	case due.Revision.Hold != nil:
		return "hold"
	case due.Evict.Reclaim:
		return "reclaim"
	}
	return "evict"
}

// note tells people who went, for whom and why.
func (l *Loop) note(due *decide.Due, dryRun bool) {
	e, kind, whom := due.Evict, kindOf(due), ""
	if kind != "hold" {
		whom = e.Job.String()
	}
	l.Logger.Info("eviction", "kind", kind, "dry_run", dryRun, "text", e.Text)
	for _, v := range e.Victims {
		l.Book.Note(view.Event{
			Kind: kind, Namespace: v.Job.Namespace, JobID: v.Job.ID, AllocID: v.AllocID,
			For: whom, Text: v.Text, DryRun: dryRun,
		})
	}
}
