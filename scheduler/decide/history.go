package decide

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// historyPath is where what was done lies among the Nomad Variables, so that who
// had to go, for whom and why is known after a change of leaders too.
const historyPath = "nomad-gpu/history"

// historyVersion is the version that this release writes; readers accept every
// version up to it.
const historyVersion = 1

// history is what was done to jobs, as it is stored.
type history struct {
	Version int          `json:"v"`
	Events  []view.Event `json:"events"`
	// Evicted is when a job (namespace/job) had to go within the last hour.
	Evicted map[string][]time.Time `json:"evicted"`
}

// budgetTime is the time in which evictions of a job are counted.
const budgetTime = time.Hour

// note keeps an event for people, for the audit log and for the next leader.
func (b *Book) note(e view.Event) {
	e.At = b.now()
	b.log.event(e)
	b.untold = append(b.untold, e)
	b.unsaved = true
	b.version++
	if e.DryRun || e.AllocID == "" || e.Kind != "evict" && e.Kind != "reclaim" {
		return
	}
	key := nomad.JobKey{Namespace: e.Namespace, ID: e.JobID}
	b.evicted[key] = append(b.evicted[key], e.At)
	b.rebookJob(key)
}

// Note writes an event for people.
func (b *Book) Note(e view.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note(e)
}

// Untold returns the events that the audit log does not have yet, once.
func (b *Book) Untold() []view.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.untold
	b.untold = nil
	return list
}

// spent reports whether a job has borne as many evictions as it has to within an
// hour.
func (b *Book) spent(key nomad.JobKey) bool {
	return len(b.evicted[key]) >= b.config.Preemption.MaxPerJob
}

// forgetEvictions forgets those that do not count any more.
func (b *Book) forgetEvictions() {
	for key, times := range b.evicted {
		left := slices.DeleteFunc(slices.Clone(times), func(at time.Time) bool { return b.now().Sub(at) >= budgetTime })
		if len(left) == len(times) {
			continue
		}
		if b.evicted[key] = left; len(left) == 0 {
			delete(b.evicted, key)
		}
		b.rebookJob(key)
	}
}

// rebookJob books a job's allocs again: whether they may be evicted is different
// now.
func (b *Book) rebookJob(key nomad.JobKey) {
	for _, a := range b.allocsOf(key) {
		b.unbook(a.ID)
		b.book(b.usageOf(a))
	}
}

// Save stores what was done since it was stored last.
func (d *Decider) Save(ctx context.Context) error {
	b := d.book
	b.mu.Lock()
	if !b.unsaved {
		b.mu.Unlock()
		return nil
	}
	h := history{Version: historyVersion, Events: newestFirst(b.log.events), Evicted: map[string][]time.Time{}}
	for key, times := range b.evicted {
		h.Evicted[key.String()] = slices.Clone(times)
	}
	was := b.saved
	b.unsaved = false
	b.mu.Unlock()
	h.Events = slices.DeleteFunc(h.Events, func(e view.Event) bool { return e.Kind == "error" })
	text, err := json.Marshal(h)
	var at stored
	if err == nil {
		at, err = writeText(ctx, d.store, historyPath, "", string(text), was)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.unsaved = true
		return fmt.Errorf("store what was done: %w", err)
	}
	b.saved = at
	return nil
}

// loadHistory reads what earlier leaders did.
func (d *Decider) loadHistory(ctx context.Context) error {
	text, at, err := readText(ctx, d.store, historyPath)
	if err != nil {
		return err
	}
	var h history
	if text != "" {
		if err := json.Unmarshal([]byte(text), &h); err != nil || h.Version > historyVersion {
			d.book.Trouble(fmt.Errorf("read what was done: version %d, %w", h.Version, err))
			h = history{}
		}
	}
	b := d.book
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saved = at
	known := b.log.events
	b.log.events = nil
	for _, e := range slices.Backward(h.Events) {
		if !slices.Contains(known, e) {
			b.log.event(e)
		}
	}
	for _, e := range known {
		b.log.event(e)
	}
	slices.SortStableFunc(b.log.events, func(x, y view.Event) int { return x.At.Compare(y.At) })
	for name, times := range h.Evicted {
		key := parseKey(name)
		b.evicted[key] = times
		b.rebookJob(key)
	}
	b.version++
	return nil
}
