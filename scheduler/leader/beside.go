package leader

import (
	"context"
	"errors"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// A record and a job are two writes that Nomad puts on its disk. One after the other they make a
// submission take twice as long. Where a leader that dies between them loses nothing that matters,
// both are made at once: then the next leader finds a job that bears marks and has no record, and
// takes it for one that came around the service. It runs, and counts for its queue.

// writing is a record that is written while Nomad registers its job.
type writing struct {
	done chan struct{} // closed once it was tried
	err  error
}

// mayWriteBeside reports whether a decision may be recorded while Nomad registers the job: of a
// job that is new, all of which may start now and none together, and which claims nothing.
func (d *Decider) mayWriteBeside(key nomad.JobKey, asks []admit.Ask, answers []admit.Decision, have *record.Record) bool {
	if !d.Beside || have.Stored() || len(have.Groups) > 0 || !d.leading() || d.lastFailed() {
		return false
	}
	known := false
	d.state.View(func(r *state.Reader) { known = r.Job(key) != nil })
	return !known && !slices.ContainsFunc(asks, func(a admit.Ask) bool {
		return a.Gang || a.Later || a.Reservation != "" || a.FallbackAfter != 0 || a.JobType != "service" && a.JobType != "batch"
	}) && !slices.ContainsFunc(answers, func(a admit.Decision) bool { return a.Hold != nil })
}

// writeBeside prepares to write a record; begin does, once it is remembered.
func (d *Decider) writeBeside(ctx context.Context, next *record.Record) (begin func()) {
	w, stored := &writing{done: make(chan struct{})}, next.Clone() // which nobody else changes
	d.mu.Lock()
	d.writing[next.Key()] = w
	d.mu.Unlock()
	write := func() {
		defer close(w.done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest) // whatever becomes of the client
		defer cancel()
		w.err = d.writeNew(ctx, stored)
		d.written(w.err)
		if w.err != nil {
			return
		}
		d.state.Do(func(tx *state.Tx) {
			if tx.Record(next.Key()) == next { // else the job is gone already
				stored.Settled = next.Settled
				tx.Keep(stored)
			}
		})
	}
	return func() { go write() }
}

// writeNew writes the first record of a job, also over what another replica has left.
func (d *Decider) writeNew(ctx context.Context, r *record.Record) error {
	err := d.write(ctx, r.Key(), r)
	if !errors.Is(err, nomad.ErrConflict) {
		return err
	}
	left, err := record.Read(ctx, d.store, r.Key())
	if err != nil {
		return err
	}
	return d.write(ctx, r.Key(), r.Replacing(left))
}

// awaitWriting waits until a record that is written beside was tried to be.
func (d *Decider) awaitWriting(key nomad.JobKey) error {
	d.mu.Lock()
	w := d.writing[key]
	delete(d.writing, key)
	d.mu.Unlock()
	if w == nil {
		return nil
	}
	<-w.done
	return w.err
}

// written notes whether a record could be written: while none can, decisions are recorded before
// Nomad hears of a job, so that one that is not recorded is refused.
func (d *Decider) written(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed = err != nil
}

func (d *Decider) lastFailed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

// forget takes back a decision of which nothing is stored.
func (d *Decider) forget(key nomad.JobKey) {
	d.state.Do(func(tx *state.Tx) {
		tx.Forget(key)
		tx.Unclaim(key)
		tx.ForgetRecord(key)
		tx.Changed()
	})
}
