// SPDX-License-Identifier: MPL-2.0

package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Load reads everything stored, when this replica begins to lead: the records of
// all jobs, the promises of the last minute, the history, and the reservations.
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
		tx.RecallHistory(done)
		decide.Learn(tx)
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

// Purge deletes the records of jobs that left Nomad, and old events of jobs. A record that cannot
// be deleted, or is still being written, is for the next time.
func (d *Decider) Purge(ctx context.Context) error {
	return errors.Join(d.purgeGone(ctx), d.sweep(ctx))
}

func (d *Decider) purgeGone(ctx context.Context) error {
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
	d.state.Do(func(tx *state.Tx) { tx.Gone.PutBack(left) })
	return problem
}

func (d *Decider) purge(ctx context.Context, key nomad.JobKey) error {
	r, err := record.Read(ctx, d.store, key)
	if err != nil || !r.Stored() {
		return err
	}
	return r.Remove(ctx, d.store)
}

// Save stores all actions since the last time: with each job, and those that count for others.
func (d *Decider) Save(ctx context.Context) error {
	return errors.Join(d.saveEvents(ctx), d.saveHistory(ctx))
}

// saveEvents stores the events of each job. It ends at the first one that cannot be stored.
func (d *Decider) saveEvents(ctx context.Context) error {
	var list []view.Event
	d.state.Do(func(tx *state.Tx) { list = tx.Events.Take() })
	for len(list) > 0 {
		key := nomad.JobKey{Namespace: list[0].Namespace, ID: list[0].JobID}
		of := func(e view.Event) bool { return e.Namespace == key.Namespace && e.JobID == key.ID }
		mine := slices.DeleteFunc(slices.Clone(list), func(e view.Event) bool { return !of(e) })
		if err := record.AddEvents(ctx, d.store, key, mine, d.state.Trouble); err != nil {
			d.state.Do(func(tx *state.Tx) { tx.Events.PutBack(list) })
			return err
		}
		list = slices.DeleteFunc(list, of)
	}
	return nil
}

const (
	// eventsKept is how long the events of a job are kept after the last of them.
	eventsKept = 30 * 24 * time.Hour
	// sweepEvery is how often older events are looked for.
	sweepEvery = 24 * time.Hour
)

// sweep deletes old events of jobs: an hour after this replica led first, and
// once a day.
func (d *Decider) sweep(ctx context.Context) error {
	var now time.Time
	d.state.View(func(r *state.Reader) { now = r.Now() })
	if d.swept.IsZero() {
		d.swept = now.Add(time.Hour - sweepEvery)
	}
	if now.Sub(d.swept) < sweepEvery {
		return nil
	}
	d.swept = now
	return record.ForgetEvents(ctx, d.store, now.Add(-eventsKept))
}

// Events are the actions on a job, newest first, of all leaders.
func (d *Decider) Events(ctx context.Context, key nomad.JobKey) ([]view.Event, error) {
	return record.Events(ctx, d.store, key)
}

func (d *Decider) saveHistory(ctx context.Context) error {
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
