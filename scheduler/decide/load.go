package decide

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
	"golang.org/x/sync/errgroup"
)

const (
	// parallelReads bounds how many variables are read at once.
	parallelReads = 16
	// fresh is how old a decision may be for its allocs to be still on their
	// way to Nomad when the leader changes.
	fresh = time.Minute
	// orphaned is how long a record outlives a job that Nomad does not have.
	orphaned = time.Hour
)

// Load reads what is stored, when this replica begins to lead: the records of
// all jobs, the promises of the last minute, and the reservations. Records of
// jobs that are gone are deleted.
func (d *Decider) Load(ctx context.Context) error {
	paths, err := d.store.List(ctx, recordPrefix)
	if err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallelReads)
	var mu sync.Mutex
	series := map[string]bool{} // of parts that a record names
	unread := false
	for path := range paths {
		if isPart(path) {
			continue
		}
		group.Go(func() error {
			r, err := readRecordAt(groupCtx, d.store, path, nomad.JobKey{})
			if err != nil {
				d.book.Trouble(err) // one bad record must not stop the service
				mu.Lock()
				defer mu.Unlock()
				unread = true
				return groupCtx.Err()
			}
			if !d.book.recall(r) {
				return r.remove(groupCtx, d.store)
			}
			mu.Lock()
			defer mu.Unlock()
			series[r.stored.series] = true
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("load decisions: %w", err)
	}
	for path := range paths {
		if !unread && isPart(path) && !series[seriesOf(path)] {
			if err := removeItem(ctx, d.store, path); err != nil {
				return fmt.Errorf("delete a part that no decision names: %w", err)
			}
		}
	}
	d.book.settleIn()
	if err := d.loadHistory(ctx); err != nil {
		return fmt.Errorf("load what was done: %w", err)
	}
	return d.loadReservations(ctx)
}

func (d *Decider) loadReservations(ctx context.Context) error {
	paths, err := d.store.List(ctx, reservationPrefix)
	if err != nil {
		return err
	}
	for path := range paths {
		item, err := d.store.Get(ctx, path)
		if err != nil {
			return fmt.Errorf("load reservations: %w", err)
		}
		var r Reservation
		if err := json.Unmarshal([]byte(item.Values["reservation"]), &r); err != nil || r.Version != RecordVersion {
			d.book.Trouble(fmt.Errorf("read reservation %q: version %d, %w", path, r.Version, err))
			continue
		}
		r.index = item.Index
		d.book.adoptClaim(&r)
	}
	return nil
}

// recall takes a stored record. It returns false for one whose job is gone.
func (b *Book) recall(r *Record) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := r.key()
	if b.jobs[key] == nil && b.now().Sub(r.At) > orphaned {
		return false
	}
	b.keep(r)
	stopped := b.jobs[key] != nil && b.jobs[key].Stopped
	for name, g := range r.Groups {
		b.log.decision(g.Shown)
		if stopped || b.now().Sub(r.At) > fresh {
			continue
		}
		b.dropGroupFlights(key, name)
		missing := g.Ask.Count - b.live(key, name)
		for _, u := range g.Flights[:max(0, min(missing, len(g.Flights)))] {
			b.fly(key, name, u, false)
		}
	}
	b.version++
	return true
}

// settleIn brings the decisions of all records into order, and teaches the
// core what they asked for.
func (b *Book) settleIn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.SortStableFunc(b.log.decisions, func(x, y view.Decision) int { return x.At.Compare(y.At) })
	b.learn()
}

// learn makes the recorded asks the core's prior demand: what a cluster was
// asked for is the best guess of what it will be asked for.
func (b *Book) learn() {
	var history []place.Request
	for _, key := range slices.SortedFunc(maps.Keys(b.records), compareKeys) {
		r := b.records[key]
		for _, name := range slices.Sorted(maps.Keys(r.Groups)) {
			g := r.Groups[name]
			q, err := b.config.QueueFor(g.Ask.Namespace, g.Ask.Queue)
			if err != nil {
				continue
			}
			parts, err := b.parts(&g.Ask, q)
			if err != nil {
				continue // it asks for what is not allowed any more
			}
			for _, p := range parts {
				history = append(history, p.req)
			}
		}
	}
	if len(history) > 0 {
		b.plan.Learn(history)
	}
}

func (b *Book) adoptClaim(r *Reservation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.claims[r.ID] != nil || !b.now().Before(r.ExpiresAt) {
		return
	}
	b.claims[r.ID] = r
	b.book(r.Usage)
	b.version++
}

// Purge deletes the records of jobs that left Nomad.
func (d *Decider) Purge(ctx context.Context) error {
	for _, key := range d.book.takeGone() {
		r, err := readRecord(ctx, d.store, key)
		if err != nil {
			return err
		}
		if r.stored.index == 0 {
			continue
		}
		if err := r.remove(ctx, d.store); err != nil {
			return err
		}
	}
	return nil
}

func (b *Book) takeGone() []nomad.JobKey {
	b.mu.Lock()
	defer b.mu.Unlock()
	var gone, later []nomad.JobKey
	for _, key := range b.gone {
		r := b.records[key]
		switch {
		case b.jobs[key] != nil: // it has come back
		case r != nil && b.now().Sub(r.At) < unseen: // or is about to: this is newer than what is gone
			later = append(later, key)
		default:
			delete(b.records, key)
			b.compare(key)
			gone = append(gone, key)
		}
	}
	b.gone = later
	return gone
}
