package leader

import (
	"context"
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Load reads what is stored, when this replica begins to lead: the records of
// all jobs, the promises of the last minute, what was done, and the reservations.
// Records of jobs that are gone are deleted.
func (d *Decider) Load(ctx context.Context) error {
	if err := record.Load(ctx, d.store, d.recall, d.state.Trouble); err != nil {
		return err
	}
	done, err := record.ReadHistory(ctx, d.store, d.state.Trouble)
	if err != nil {
		return fmt.Errorf("load what was done: %w", err)
	}
	reservations, err := record.Reservations(ctx, d.store, d.state.Trouble)
	if err != nil {
		return err
	}
	d.state.Do(func(tx *state.Tx) {
		decide.Learn(tx)
		tx.RecallHistory(done)
		for _, r := range reservations {
			tx.Reserve(r)
		}
	})
	return nil
}

func (d *Decider) recall(r *record.Record) (needed bool) {
	d.state.Do(func(tx *state.Tx) { needed = tx.Recall(r) })
	return needed
}

// Purge deletes the records of jobs that left Nomad. What cannot be deleted, or is still being
// written, is for the next time.
func (d *Decider) Purge(ctx context.Context) error {
	var gone, left []nomad.JobKey
	d.state.Do(func(tx *state.Tx) { gone = tx.TakeGone() })
	var problem error
	for _, key := range gone {
		if problem == nil && d.late.isWriting(key) == nil {
			problem = d.purge(ctx, key)
		}
		if problem != nil || d.late.isWriting(key) != nil {
			left = append(left, key)
		}
	}
	d.state.Do(func(tx *state.Tx) { tx.PutBackGone(left) })
	return problem
}

func (d *Decider) purge(ctx context.Context, key nomad.JobKey) error {
	r, err := record.Read(ctx, d.store, key)
	if err != nil || !r.Stored() {
		return err
	}
	return r.Remove(ctx, d.store)
}

// Save stores what was done since it was stored last.
func (d *Decider) Save(ctx context.Context) error {
	var now, was *record.History
	d.state.Do(func(tx *state.Tx) { now, was = tx.TakeUnsaved() })
	if now == nil {
		return nil
	}
	err := now.Write(ctx, d.store, was)
	if err != nil {
		now = nil
	}
	d.state.Do(func(tx *state.Tx) { tx.Saved(now) })
	return err
}
