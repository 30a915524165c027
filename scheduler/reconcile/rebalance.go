// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// rebalance moves running work to where it pays, where the operator
// wants that. A move is an eviction for the work's own sake: its job prefers
// the new node, leaves the old one out until the replacement runs, and its
// alloc is stopped.
func (l *Loop) rebalance(ctx context.Context) {
	c := l.Config().Rebalance
	if !c.Enabled || time.Since(l.balanced) < c.Interval {
		return
	}
	l.balanced = time.Now()
	var moves []Move
	var relief *Item
	l.State.Do(func(tx *state.Tx) { moves, relief = l.Work.Moves(tx, c.MaxMoves), l.Work.Relief(tx, c.MaxMoves) })
	if relief != nil {
		l.evict(ctx, relief)
	}
	for _, m := range moves {
		if l.Config().Preemption.DryRun {
			l.noteMove(&m, true)
			continue
		}
		l.assume(m.Promise)
		if err := l.move(ctx, &m); err != nil {
			l.forget(m.Promise)
			l.report("move an alloc of job "+m.Job.String(), err)
		}
	}
}

func (l *Loop) move(ctx context.Context, m *Move) error {
	r := decide.Revision{Group: m.Group, Prefer: m.To, Exclude: []string{m.From}, For: m.Job.String()}
	if _, err := l.revise(ctx, m.Job, r); err != nil {
		return err
	}
	l.noteMove(m, false)
	if err := l.tell(ctx); err != nil {
		return err
	}
	v := decide.Victim{AllocID: m.AllocID, Job: m.Job}
	err := l.stopAlloc(ctx, &v)
	if err != nil {
		l.noteFailed(err, []decide.Victim{v}, "move")
	}
	return err
}

func (l *Loop) noteMove(m *Move, dryRun bool) {
	l.Logger.Info("move", "dry_run", dryRun, "text", m.Text)
	l.State.Do(func(tx *state.Tx) {
		tx.Note(view.Event{Kind: "move", Namespace: m.Job.Namespace, JobID: m.Job.ID, AllocID: m.AllocID, For: m.Job.String(), Text: m.Text, DryRun: dryRun})
	})
}
