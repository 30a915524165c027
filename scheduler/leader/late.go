// SPDX-License-Identifier: MPL-2.0

package leader

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// A record and a job are two writes that Nomad puts on its disk, one after the other, and who
// submits a job would wait for both. Where little is lost with a leader that dies between them, the
// record comes last, and the submitter does not wait for it. The next leader then finds a job that
// bears marks and has no record, and takes it for one that came around the service: it runs, and
// counts for its queue.

// mostLate is how many records may be on their way; what more is decided is recorded first.
const mostLate = 64

// late are the records that are still to be written, by job.
type late struct {
	mu      sync.Mutex
	decided map[nomad.JobKey]*pending // Nomad has not answered yet
	writing map[nomad.JobKey]*pending
	// failed is set while the last record could not be written: until one can, decisions are
	// recorded before Nomad hears of a job, so that one that cannot be recorded is refused.
	failed bool
}

// pending is a record that is to be written: a copy of the one that is remembered, which others
// change.
type pending struct {
	next, remembered *record.Record
	text             record.Text   // of next
	done             chan struct{} // closed once it was tried, or is not wanted any more
}

func newLate() *late {
	return &late{decided: map[nomad.JobKey]*pending{}, writing: map[nomad.JobKey]*pending{}}
}

// simple reports whether the record of a decision may come late: the job is new, all of it
// may start now and none together, and it claims nothing.
func (d *Decider) simple(key nomad.JobKey, asks []admit.Ask, answers []admit.Decision, have *record.Record) bool {
	if !d.Late || have.Stored() || len(have.Groups) > 0 {
		return false
	}
	known := false
	d.state.View(func(r *state.Reader) { known = r.Cluster.Job(key) != nil })
	return !known && !slices.ContainsFunc(asks, func(a admit.Ask) bool {
		return a.Gang || a.Later || a.Reservation != "" || a.FallbackAfter != 0 || a.JobType != "service" && a.JobType != "batch"
	}) && !slices.ContainsFunc(answers, func(a admit.Decision) bool { return a.Hold != nil })
}

// keep takes a record that is to be written when Nomad has the job. It does not while records
// cannot be written, too many are on their way, or this replica is about to stop leading.
func (l *late) keep(next *record.Record, leading func() bool) bool {
	text, err := next.Text()
	if err != nil || !text.InOne() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed || len(l.decided)+len(l.writing) >= mostLate || !leading() {
		return false
	}
	l.decided[next.Key()] = &pending{next: next.Clone(), text: text, remembered: next, done: make(chan struct{})}
	return true
}

// take returns the pending record of a job, if any: it is being written now, or dropped.
func (l *late) take(key nomad.JobKey, write bool) *pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.decided[key]
	delete(l.decided, key)
	switch {
	case p == nil:
	case write:
		l.writing[key] = p
	default:
		close(p.done)
	}
	return p
}

func (l *late) end(p *pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.writing, p.next.Key())
	close(p.done)
}

// tried notes whether a record could be written. A request that was given up says nothing, nor does
// a record that another replica wrote.
func (l *late) tried(ctx context.Context, err error) {
	if ctx.Err() != nil || errors.Is(err, nomad.ErrConflict) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = err != nil
}

func (l *late) isWriting(key nomad.JobKey) *pending {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writing[key]
}

// await waits until no record of a job is being written.
func (l *late) await(ctx context.Context, key nomad.JobKey) error {
	if p := l.isWriting(key); p != nil {
		return p.wait(ctx)
	}
	return nil
}

func (p *pending) wait(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait until the decision about job %q is recorded: %w", p.next.Key(), ctx.Err())
	}
}

// Finish waits until everything that was decided is recorded, before another replica leads: also
// what Nomad has not answered yet. This replica must not decide any more.
func (d *Decider) Finish(ctx context.Context) error {
	d.late.mu.Lock()
	var all []*pending
	for _, of := range []map[nomad.JobKey]*pending{d.late.decided, d.late.writing} {
		for _, p := range of {
			all = append(all, p)
		}
	}
	d.late.mu.Unlock()
	for _, p := range all {
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// writeLate writes a record, and does not wait for it.
func (d *Decider) writeLate(ctx context.Context, p *pending) {
	go func() {
		defer d.late.end(p)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest) // the client may leave
		defer cancel()
		if err := d.writeNew(ctx, p); err != nil {
			d.state.Trouble(fmt.Errorf("record the decision about job %q, which Nomad has: %w; the next leader takes it for one that came around the service", p.next.Key(), err))
		}
	}()
}

// writeNew writes the first record of a job until it is written, ctx ends, or another was made
// since. It does so too where this replica does not lead any more: it admitted the job. Over
// what another replica has left it writes only while it leads.
func (d *Decider) writeNew(ctx context.Context, p *pending) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		if !d.isNewest(p) {
			return nil
		}
		err := p.next.WriteText(ctx, d.store, p.text)
		d.late.tried(ctx, err)
		if err == nil {
			d.state.Do(func(tx *state.Tx) {
				if tx.Queue.Record(p.next.Key()) == p.remembered {
					tx.Keep(p.remembered.Clone().Replacing(p.next))
				}
			})
			return nil
		}
		if errors.Is(err, nomad.ErrConflict) {
			if !d.leading() {
				return fmt.Errorf("another replica has recorded one: %w", ErrNotLeading)
			}
			left, unread := record.Read(ctx, d.store, p.next.Key())
			if err = errors.Join(err, unread); unread == nil {
				p.next.Replacing(left)
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// isNewest reports whether nothing was decided about the job since, and it is not gone.
func (d *Decider) isNewest(p *pending) (newest bool) {
	d.state.View(func(r *state.Reader) { newest = r.Queue.Record(p.next.Key()) == p.remembered })
	return newest
}

// drop takes back a decision that is not stored and claims nothing.
func (d *Decider) drop(p *pending) {
	key := p.next.Key()
	d.state.Do(func(tx *state.Tx) {
		if tx.Queue.Record(key) != p.remembered {
			return
		}
		tx.Forget(key)
		tx.ForgetRecord(key)
		tx.Changed()
	})
}
