package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// A record and a job are two writes that Nomad puts on its disk, one after the other, and who
// submits a job would wait for both. Where a leader that dies between them loses nothing that
// matters, the record comes last, and the submitter does not wait for it. The next leader finds a job then that
// bears marks and has no record, and takes it for one that came around the service: it runs, and
// counts for its queue.

// late are the records that are still to be written.
type late struct {
	slots chan struct{} // of those that are written at once

	mu      sync.Mutex
	decided map[nomad.JobKey]*pending // Nomad has not answered yet
	writing map[nomad.JobKey]*pending
	// failed is set while the last record could not be written: until one can, decisions are
	// recorded before Nomad hears of a job, so that one that cannot be recorded is refused.
	failed bool
}

// mostLate is how many records are written at once; a submission waits for more.
const mostLate = 64

func newLate() *late {
	return &late{slots: make(chan struct{}, mostLate), decided: map[nomad.JobKey]*pending{}, writing: map[nomad.JobKey]*pending{}}
}

// pending is a record that is to be written: a copy of the one that is remembered, which others
// change.
type pending struct {
	next, remembered *record.Record
	done             chan struct{} // closed once it was tried
}

// mayWriteLate reports whether a decision may be recorded after Nomad has the job: one that
// is new, all of which may start now and none together, and which claims nothing.
func (d *Decider) mayWriteLate(key nomad.JobKey, asks []admit.Ask, answers []admit.Decision, have *record.Record) bool {
	if !d.Late || have.Stored() || len(have.Groups) > 0 || !d.leading() || !d.late.works() {
		return false
	}
	known := false
	d.state.View(func(r *state.Reader) { known = r.Job(key) != nil })
	return !known && !slices.ContainsFunc(asks, func(a admit.Ask) bool {
		return a.Gang || a.Later || a.Reservation != "" || a.FallbackAfter != 0 || a.JobType != "service" && a.JobType != "batch"
	}) && !slices.ContainsFunc(answers, func(a admit.Decision) bool { return a.Hold != nil })
}

func (l *late) works() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.failed
}

// tried notes whether a record could be written. One that another replica wrote says nothing.
func (l *late) tried(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = err != nil && !errors.Is(err, nomad.ErrConflict)
}

// keep takes a record that is to be written when Nomad has the job.
func (l *late) keep(next, remembered *record.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.decided[next.Key()] = &pending{next: next, remembered: remembered, done: make(chan struct{})}
}

// take returns what was kept of a job, if anything.
func (l *late) take(key nomad.JobKey) *pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.decided[key]
	delete(l.decided, key)
	return p
}

// await waits until no record of a job is being written.
func (l *late) await(ctx context.Context, key nomad.JobKey) error {
	for {
		l.mu.Lock()
		p := l.writing[key]
		l.mu.Unlock()
		if p == nil {
			return nil
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			return fmt.Errorf("wait until the last decision about job %q is recorded: %w", key, ctx.Err())
		}
	}
}

// Finish waits until all records are written: before another replica leads.
func (d *Decider) Finish(ctx context.Context) error {
	d.late.mu.Lock()
	keys := make([]nomad.JobKey, 0, len(d.late.writing))
	for key := range d.late.writing {
		keys = append(keys, key)
	}
	d.late.mu.Unlock()
	for _, key := range keys {
		if err := d.late.await(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// writeLate writes a record without waiting for it, unless too many are being written.
func (d *Decider) writeLate(ctx context.Context, p *pending) {
	key := p.next.Key()
	d.late.mu.Lock()
	d.late.writing[key] = p
	d.late.mu.Unlock()
	d.late.slots <- struct{}{}
	go func() {
		defer func() {
			<-d.late.slots
			d.late.mu.Lock()
			delete(d.late.writing, key)
			d.late.mu.Unlock()
			close(p.done)
		}()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest) // the client may leave
		defer cancel()
		if err := d.writeNew(ctx, p.next); err != nil {
			d.state.Trouble(fmt.Errorf("record the decision about job %q, which Nomad has: %w; the next leader takes it for one that came around the service", key, err))
			return
		}
		d.state.Do(func(tx *state.Tx) {
			if tx.Record(key) == p.remembered { // else the job is gone already
				p.next.Settled = p.remembered.Settled
				tx.Keep(p.next)
			}
		})
	}()
}

// writeNew writes the first record of a job, also where this replica does not lead any more: it
// admitted the job. Over what another replica has left it writes only while it leads.
func (d *Decider) writeNew(ctx context.Context, r *record.Record) error {
	err := r.Write(ctx, d.store)
	if d.late.tried(err); !errors.Is(err, nomad.ErrConflict) {
		return err
	}
	left, err := record.Read(ctx, d.store, r.Key())
	if err != nil {
		return err
	}
	return d.write(ctx, r.Key(), r.Replacing(left))
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
