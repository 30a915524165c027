// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// takeSeat has a waiting group take a free seat. The seat is booked first, so that no
// admission takes it. The node does the rest: what sits there steps aside.
func (l *Loop) takeSeat(ctx context.Context, item *Item) bool {
	if l.Config().Preemption.DryRun {
		l.noteSeat(item, true)
		l.skip[item.Job.String()] = time.Now().Add(time.Minute)
		return true
	}
	l.assume(item.Seat.Promise)
	changed, err := l.revise(ctx, item.Job, item.Revision)
	if err != nil || !changed {
		l.forget(item.Seat.Promise)
		l.report("take a seat for job "+item.Job.String(), err)
		return false
	}
	l.noteSeat(item, false)
	return true
}

// noteSeat records for people which allocs step aside, for which job and why.
func (l *Loop) noteSeat(item *Item, dryRun bool) {
	l.Logger.Info("seat", "dry_run", dryRun, "text", item.Seat.Text)
	l.State.Do(func(tx *state.Tx) {
		for _, v := range item.Seat.Aside {
			tx.Note(view.Event{
				Kind: "suspend", Namespace: v.Job.Namespace, JobID: v.Job.ID, AllocID: v.AllocID,
				For: item.Job.String(), Text: v.Text, DryRun: dryRun,
			})
		}
	})
}
