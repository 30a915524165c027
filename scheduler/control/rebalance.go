package control

import (
	"context"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// rebalance moves running work to where less goes to waste, where the operator
// wants that. A move is an eviction for the work's own sake: its job prefers
// the new node, leaves the old one out until the replacement runs, and its
// alloc is stopped.
func (l *Loop) rebalance(ctx context.Context) {
	c := l.Config().Rebalance
	if !c.Enabled || time.Since(l.balanced) < c.Interval {
		return
	}
	l.balanced = time.Now()
	for _, m := range l.Book.Moves(c.MaxMoves) {
		if l.Config().Preemption.DryRun {
			l.noteMove(&m, true)
			continue
		}
		l.Book.Promise(m.Promise)
		if err := l.move(ctx, &m); err != nil {
			l.Book.Withdraw(m.Promise)
			l.report("move an alloc of job "+m.Job.String(), err)
			continue
		}
		l.noteMove(&m, false)
	}
}

func (l *Loop) move(ctx context.Context, m *decide.Move) error {
	r := decide.Revision{Group: m.Group, Prefer: m.To, Exclude: m.From, For: m.Job.String()}
	if _, err := l.revise(ctx, m.Job, r); err != nil {
		return err
	}
	return l.Actor.Stop(ctx, m.AllocID)
}

func (l *Loop) noteMove(m *decide.Move, dryRun bool) {
	l.Logger.Info("move", "dry_run", dryRun, "text", m.Text)
	l.Book.Note(view.Event{Kind: "move", Namespace: m.Job.Namespace, JobID: m.Job.ID, AllocID: m.AllocID, For: m.Job.String(), Text: m.Text, DryRun: dryRun})
}
