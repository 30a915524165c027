// SPDX-License-Identifier: MPL-2.0

package leader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace"
)

// ErrNotLeading is wrapped by a replica that may not decide; the leader can.
var ErrNotLeading = errors.New("this replica does not lead")

// ErrBusy is the text of a refusal: another request decided about the same job at
// the same moment.
var ErrBusy = errors.New("the job is being decided about by another request; try again")

// Decider answers asks.
type Decider struct {
	state   *state.State
	store   record.Store
	leading func() bool
	// Late has the record of a new and simple job written after Nomad took the job, and not
	// before, as the service does it.
	Late bool

	mu     sync.Mutex
	before map[nomad.JobKey]*record.Record // what an unsettled decision replaced
	late   *late

	swept time.Time // when old events were looked for last; of the control loop alone
}

// New decides about a state. Leading says whether this replica may.
func New(s *state.State, store record.Store, leading func() bool) *Decider {
	return &Decider{state: s, store: store, leading: leading, before: map[nomad.JobKey]*record.Record{}, late: newLate()}
}

// Configure replaces the configuration.
func (d *Decider) Configure(c *config.Config) {
	d.state.Do(func(tx *state.Tx) {
		if tx.Configure(c) {
			decide.Learn(tx)
		}
	})
}

// Decide answers the asks of one job, in their order. With dryRun nothing is
// booked or recorded. The error is an *admit.Refusal for the user, or wraps
// ErrNotLeading or state.ErrBlind.
func (d *Decider) Decide(ctx context.Context, asks []admit.Ask, dryRun bool) ([]admit.Decision, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	key := keyOf(asks)
	if !dryRun && !d.leading() {
		return nil, fmt.Errorf("decide about job %q: %w", key, ErrNotLeading)
	}
	var err error
	if d.state.View(func(r *state.Reader) { err = r.Cluster.Ready() }); err != nil {
		return nil, err
	}
	if err := d.late.await(ctx, key); err != nil {
		return nil, err
	}
	if !dryRun {
		d.late.take(key, false) // of a request that never told what became of it
	}
	have, err := d.known(ctx, key)
	if err != nil {
		return nil, err
	}
	answers, err := d.decide(ctx, key, asks, have, dryRun)
	if !errors.Is(err, nomad.ErrConflict) {
		return answers, err
	}
	// The Variable is not as this replica left it: it was deleted or written.
	if have, err = d.read(ctx, key); err != nil {
		return nil, err
	}
	if answers, err = d.decide(ctx, key, asks, have, dryRun); errors.Is(err, nomad.ErrConflict) {
		err = &admit.Refusal{Status: http.StatusConflict, Text: ErrBusy.Error()}
	}
	return answers, err
}

// longest is how long a decision may keep others waiting.
const longest = 20 * time.Second

// decide answers the asks of a job about which this was decided before, and records
// the answer.
func (d *Decider) decide(ctx context.Context, key nomad.JobKey, asks []admit.Ask, have *record.Record, dryRun bool) ([]admit.Decision, error) {
	var next *record.Record
	var answers []admit.Decision
	var rollback, explain func()
	brief, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	err := d.state.Update(func(tx *state.Tx) (err error) {
		rollback = tx.Savepoint(key)
		next, answers, err = decide.Job(brief.Err, tx, key, asks, have)
		if err == nil && dryRun {
			rollback()
			explain = decide.ForeseePlan(tx, key, asks, answers)
		} else if err == nil {
			tx.Changed()
		}
		return err
	})
	if err == nil && dryRun {
		explain()
	}
	if err != nil || dryRun {
		return answers, err
	}
	if parent := trace.Parent(ctx); parent != "" {
		next.Trace = record.Trace{Parent: parent, At: next.At}
	}
	if d.simple(key, asks, answers, have) && d.late.keep(next, d.leading) {
		d.remember(next, have)
		return answers, nil
	}
	if err := d.write(ctx, key, next); err != nil {
		d.state.Do(func(tx *state.Tx) {
			rollback()
			tx.Changed()
		})
		return nil, err
	}
	d.remember(next, have)
	return answers, nil
}

func keyOf(asks []admit.Ask) nomad.JobKey {
	return nomad.JobKey{Namespace: asks[0].Namespace, ID: asks[0].JobID}
}

// write records a decision, while this replica leads.
func (d *Decider) write(ctx context.Context, key nomad.JobKey, next *record.Record) error {
	if !d.leading() {
		return fmt.Errorf("decide about job %q: %w", key, ErrNotLeading)
	}
	err := next.Write(ctx, d.store)
	d.late.tried(ctx, err)
	return err
}

// remember keeps a record that was written, and the replaced one until it is
// settled.
func (d *Decider) remember(next, before *record.Record) {
	d.keep(next)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before[next.Key()] = before
}

func (d *Decider) keep(r *record.Record) {
	d.state.Do(func(tx *state.Tx) { tx.Keep(r) })
}

// known is the decision about a job. The leader has read all records, and has made
// those since: a write that names another index than the Variable has fails.
func (d *Decider) known(ctx context.Context, key nomad.JobKey) (*record.Record, error) {
	if !d.leading() {
		return d.read(ctx, key)
	}
	have := record.New(key)
	d.state.View(func(r *state.Reader) {
		if known := r.Queue.Record(key); known != nil {
			have = known.Clone()
		}
	})
	return have, nil
}

// read returns the decision about a job. Where the Variable is lost,
// this replica's memory of it counts.
func (d *Decider) read(ctx context.Context, key nomad.JobKey) (*record.Record, error) {
	stored, err := record.Read(ctx, d.store, key)
	if err != nil || stored.Stored() {
		return stored, err
	}
	d.state.View(func(r *state.Reader) {
		if known := r.Queue.Record(key); known != nil && r.Cluster.Job(key) != nil {
			stored = known.Lost()
		}
	})
	return stored, nil
}

// Settle follows a decision: accepted is whether Nomad took the job. Except for new and
// simple jobs, a decision is recorded before Nomad hears of it, so that a crash in between
// cannot lose what a running job was given; one that Nomad refused is taken
// back here.
func (d *Decider) Settle(ctx context.Context, asks []admit.Ask, _ []admit.Decision, accepted bool) {
	if len(asks) == 0 {
		return
	}
	key := keyOf(asks)
	d.mu.Lock()
	before := d.before[key]
	delete(d.before, key)
	d.mu.Unlock()
	switch p := d.late.take(key, accepted); {
	case p != nil && !accepted:
		d.drop(p)
		return
	case p != nil:
		d.writeLate(ctx, p)
	}
	if accepted {
		d.state.Do(func(tx *state.Tx) { decide.Accepted(tx, key, asks) })
		d.consume(ctx, asks)
		return
	}
	if before == nil {
		return
	}
	if err := d.takeBack(ctx, key, before); err != nil {
		d.state.Trouble(fmt.Errorf("take back the decision about job %q: %w", key, err))
	}
}

// Unchanged follows Settle where Nomad took a job as the one that it had already.
func (d *Decider) Unchanged(asks []admit.Ask, index uint64) {
	if len(asks) > 0 {
		d.state.Do(func(tx *state.Tx) { decide.Unchanged(tx, keyOf(asks), asks, index) })
	}
}

// consume forgets the reservations that the job has claimed: from here on the
// job itself holds the room.
func (d *Decider) consume(ctx context.Context, asks []admit.Ask) {
	for i := range asks {
		id, claimed := asks[i].Reservation, false
		d.state.View(func(r *state.Reader) {
			one := r.Capacity.Reservation(id)
			claimed = one != nil && one.ClaimedBy == keyOf(asks).String()
		})
		if !claimed {
			continue
		}
		if err := record.RemoveReservation(ctx, d.store, id); err != nil {
			d.state.Trouble(err)
		}
	}
}

// takeBack ends the promises to a job and stores its earlier record again.
func (d *Decider) takeBack(ctx context.Context, key nomad.JobKey, before *record.Record) error {
	var now *record.Record
	empty := len(before.Groups) == 0
	d.state.Do(func(tx *state.Tx) {
		tx.Forget(key)
		tx.Unclaim(key)
		tx.Changed()
		if now = tx.Queue.Record(key); now != nil && empty {
			tx.ForgetRecord(key)
		}
	})
	switch {
	case now == nil || !now.Stored():
		return nil
	case empty:
		return now.Remove(ctx, d.store)
	}
	again := before.Clone().Replacing(now)
	if err := again.Write(ctx, d.store); err != nil {
		return err
	}
	d.keep(again)
	return nil
}

// Revise changes the decision about a job, whose asks were read from Nomad
// just now, and records the change. It returns nil when nothing has to be
// registered; otherwise the change must be settled like any decision.
func (d *Decider) Revise(ctx context.Context, asks []admit.Ask, r decide.Revision) ([]admit.Decision, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	key := keyOf(asks)
	if !d.leading() {
		return nil, fmt.Errorf("revise job %q: %w", key, ErrNotLeading)
	}
	if err := d.late.await(ctx, key); err != nil {
		return nil, err
	}
	have, err := d.read(ctx, key)
	if err != nil {
		return nil, err
	}
	var revised decide.Revised
	err = d.state.Update(func(tx *state.Tx) error {
		revised, err = decide.Revise(tx, key, asks, have, r)
		return err
	})
	if err != nil || !revised.Record && !revised.Job {
		return nil, err
	}
	if err := revised.Next.Write(ctx, d.store); err != nil {
		return nil, err
	}
	if revised.Job {
		d.remember(revised.Next, have)
		return revised.Answers, nil
	}
	d.state.Do(func(tx *state.Tx) {
		tx.Keep(revised.Next)
		tx.Settled(key)
	})
	return nil, nil
}
