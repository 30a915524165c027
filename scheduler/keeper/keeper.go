// SPDX-License-Identifier: MPL-2.0

// Package keeper writes the ledger: it follows the allocs that come and go in the state of the
// cluster, samples their use, and asks Nomad for missed ones.
//
// Every replica keeps a ledger of its own, from what Nomad tells all of them, so that a
// change of leaders changes nothing in it. A replica that was away asks Nomad for the allocs
// that ended meanwhile; Nomad remembers those for an hour at least.
package keeper

import (
	"context"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Store keeps records; *files.Store does.
type Store interface {
	// Append stores records: all of them, or none with an error.
	Append(ctx context.Context, records []ledger.Record) error
	// Recall returns the holdings that the ledger knows, and until when it was watched.
	Recall(ctx context.Context) (held []ledger.Record, seen time.Time, err error)
	// Ended lists what ended in records since a time.
	Ended(ctx context.Context, since time.Time) (map[ledger.Key]bool, error)
}

// Past tells of allocs that ended; *nomad.Client does.
type Past interface {
	Ended(ctx context.Context, each func([]*nomad.Alloc)) error
}

// Keeper writes the ledger.
type Keeper struct {
	Store  Store
	State  *state.State
	Past   Past
	Logger hclog.Logger
	// Sample is how often use is sampled; 0: it is not.
	Sample time.Duration
	// Samples reports whether this replica is the one that samples; nil: it is.
	Samples func() bool
	// Keep is how long the store keeps records.
	Keep time.Duration
	Now  func() time.Time
	// Tally is called with each holding and its time, as it goes on, and Report after each
	// round with the state of the store; nil: not called.
	Tally  func(h *ledger.Hold, d time.Duration)
	Report func(Status)

	resumed  bool // what an earlier process left is known
	status   Status
	open     map[ledger.Key]*account
	byAlloc  map[string][]ledger.Key
	unstored []ledger.Record
	lost     bool // something may have been missed
	caughtUp time.Time
	tried    time.Time // when it was last asked for, answered or not
	started  time.Time
	noted    time.Time // until when it is stored that the service watches
	sampled  time.Time
	// toldStore and toldPast are the troubles that were told last.
	toldStore, toldPast string
}

// account is an entry that has not ended.
type account struct {
	hold            *ledger.Hold
	tallied         time.Time // until when
	node, instance  string
	alone           bool
	at              time.Time // of the last sample
	compute, memory ledger.Sketch
	// recalled is the time of the hold that an earlier process stored, until Nomad shows the
	// alloc: it may have ended unseen.
	recalled time.Time
	// left is when an alloc was gone whose end Nomad has not told.
	left time.Time
}

const (
	// pause is how often the state is looked at.
	pause = time.Second
	// noteEvery is the period of storing that the service watches, and its measurements.
	noteEvery = 5 * time.Minute
	// catchUpEvery is how often Nomad is asked for what ended, also when nothing seems to have
	// been missed: less than Nomad remembers it.
	catchUpEvery = 30 * time.Minute
	// catchUpAgain is how long after an attempt the next one comes, where something was missed.
	catchUpAgain = 15 * time.Second
)

// Run keeps the ledger until the context ends. [state.State.FollowTurnover] comes before
// the first word of Nomad.
func (k *Keeper) Run(ctx context.Context) {
	for {
		k.Round(ctx)
		if !wait(ctx, pause) {
			break
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
	defer cancel()
	if k.resumed || k.recall(last) {
		k.finish(last)
	}
}

// finish stores everything known when the process ends.
func (k *Keeper) finish(ctx context.Context) {
	if k.lost {
		k.useAll(k.Now())
	} else {
		k.note(k.Now())
	}
	k.store(ctx)
}

func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// recall takes up what an earlier process left. Where the store did not answer at first, what
// came and went since then is known already.
func (k *Keeper) recall(ctx context.Context) bool {
	k.begin()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	held, seen, err := k.Store.Recall(ctx)
	ended := map[ledger.Key]bool{}
	if err == nil && len(k.unstored) > 0 {
		ended, err = k.Store.Ended(ctx, k.started.Add(-clockSkew))
	}
	if k.read(err); err != nil {
		return false
	}
	k.unstored = slices.DeleteFunc(k.unstored, func(r ledger.Record) bool { return ended[r.Key] })
	for _, r := range k.unstored {
		if r.Kind == ledger.KindEnd {
			ended[r.Key] = true
		}
	}
	for _, r := range held {
		if k.open[r.Key] == nil && !ended[r.Key] {
			k.enter(r.Key, &account{hold: r.Hold, tallied: k.Now(), recalled: r.At})
		}
	}
	k.noted, k.lost, k.resumed = seen, true, true
	return true
}

// begin is the start of the process.
func (k *Keeper) begin() {
	if k.open == nil {
		k.open, k.byAlloc, k.started = map[ledger.Key]*account{}, map[string][]ledger.Key{}, k.Now()
	}
}

func (k *Keeper) enter(key ledger.Key, a *account) {
	k.open[key] = a
	k.byAlloc[key.Alloc] = append(k.byAlloc[key.Alloc], key)
}

// Round takes what happened since the last one.
func (k *Keeper) Round(ctx context.Context) {
	now := k.Now()
	k.begin()
	if !k.resumed {
		k.recall(ctx)
	}
	ready := k.follow()
	if !ready {
		k.lost = true
	} else if !k.resumed {
		// it is caught up when the store answers
	} else if k.lost && now.Sub(k.tried) >= catchUpAgain || now.Sub(k.caughtUp) >= catchUpEvery {
		k.tried = now
		k.catchUp(ctx, now)
	}
	for _, a := range k.open {
		k.tally(a, now)
	}
	if k.Sample > 0 && now.Sub(k.sampled) >= k.Sample && (k.Samples == nil || k.Samples()) {
		k.sampled = now
		k.sample()
	}
	// While something may have been missed it is not said that the service watches.
	if ready && !k.lost && now.Sub(k.noted) >= noteEvery {
		k.note(now)
	}
	k.store(ctx)
}

// follow takes the allocs that came and went. It reports whether Nomad is heard.
func (k *Keeper) follow() (ready bool) {
	k.State.Do(func(tx *state.Tx) {
		ready = tx.Cluster.Ready() == nil
		came, went := tx.TakeTurnover()
		for _, a := range came {
			k.came(&tx.Reader, a)
		}
		for _, a := range went {
			if !a.Holds() {
				if !k.resumed { // the store may know it
					k.came(&tx.Reader, a)
				}
				k.went(a)
				continue
			}
			// The list of what ended may know it.
			for _, key := range k.byAlloc[a.ID] {
				k.open[key].left, k.lost = a.Ended, true
			}
		}
	})
	return ready
}

// came opens the entries of an alloc.
func (k *Keeper) came(r *state.Reader, a *nomad.Alloc) {
	for key, h := range holdings(r, a) {
		if known := k.open[key]; known != nil {
			known.node, known.instance, known.alone, known.recalled = h.node, h.instance, h.alone, time.Time{}
			continue
		}
		k.enter(key, &account{hold: &h.Hold, tallied: k.talliedFrom(a.Created), node: h.node, instance: h.instance, alone: h.alone})
		k.unstored = append(k.unstored, ledger.Record{Kind: ledger.KindHold, At: a.Created.UTC(), Key: key, Hold: &h.Hold})
	}
}

// talliedFrom is the time from which an alloc is tallied: holdings before this process counted
// for an earlier one.
func (k *Keeper) talliedFrom(created time.Time) time.Time {
	if created.Before(k.started) {
		return k.started
	}
	return created
}

// tally tells how long an entry went on.
func (k *Keeper) tally(a *account, until time.Time) {
	if d := until.Sub(a.tallied); d > 0 && k.Tally != nil {
		a.tallied = until
		k.Tally(a.hold, d)
	}
}

// went closes them, as far as they are open.
func (k *Keeper) went(a *nomad.Alloc) {
	end := a.Ended
	if end.Before(a.Created) { // by clocks of two machines
		end = a.Created
	}
	for _, key := range slices.Clone(k.byAlloc[a.ID]) {
		k.end(key, end, a.Status)
	}
}

func (k *Keeper) end(key ledger.Key, at time.Time, why string) {
	k.use(key, at)
	k.tally(k.open[key], at)
	k.unstored = append(k.unstored, ledger.Record{Kind: ledger.KindEnd, At: at.UTC(), Key: key, Why: why})
	delete(k.open, key)
	k.byAlloc[key.Alloc] = slices.DeleteFunc(k.byAlloc[key.Alloc], func(other ledger.Key) bool { return other == key })
	if len(k.byAlloc[key.Alloc]) == 0 {
		delete(k.byAlloc, key.Alloc)
	}
}

// catchUp asks Nomad for ended allocs, closes their open entries and enters allocs that came and went
// unseen. An entry that is neither among these nor running was purged, or ended while the
// service was away for longer than Nomad remembers: it counts until the service watched last.
func (k *Keeper) catchUp(ctx context.Context, now time.Time) {
	var ended []*nomad.Alloc
	err := k.Past.Ended(ctx, func(page []*nomad.Alloc) {
		for _, a := range page {
			if now.Sub(a.Ended) < k.Keep { // older ones may have been removed from the ledger
				ended = append(ended, a)
			}
		}
	})
	if k.trouble(&k.toldPast, err); err != nil {
		return
	}
	stored, err := k.stored(ctx, ended)
	if k.read(err); err != nil {
		return
	}
	k.State.View(func(r *state.Reader) {
		for _, a := range ended {
			for key, h := range holdings(r, a) {
				if k.open[key] == nil && !stored[key] {
					k.enter(key, &account{hold: &h.Hold, tallied: k.talliedFrom(a.Created)})
					k.unstored = append(k.unstored, ledger.Record{Kind: ledger.KindHold, At: a.Created.UTC(), Key: key, Hold: &h.Hold})
				}
			}
			k.went(a)
		}
		k.closeUnseen(r)
	})
	k.caughtUp, k.lost = now, false
}

// closeUnseen ends what Nomad knows neither as running nor as ended.
func (k *Keeper) closeUnseen(r *state.Reader) {
	for key, a := range k.open {
		switch {
		case r.Cluster.Alloc(key.Alloc) != nil:
		case !a.left.IsZero():
			k.end(key, a.left, ledger.EndPurged)
		case a.recalled.IsZero(): // its end is the next word of Nomad
		case a.recalled.After(k.noted):
			k.end(key, a.recalled, ledger.EndUnseen)
		default:
			k.end(key, k.noted, ledger.EndUnseen)
		}
	}
}

// stored lists which entries of allocs that ended are in the ledger already.
func (k *Keeper) stored(ctx context.Context, ended []*nomad.Alloc) (map[ledger.Key]bool, error) {
	if len(ended) == 0 {
		return nil, nil
	}
	first := ended[0].Ended
	for _, a := range ended {
		if a.Ended.Before(first) {
			first = a.Ended
		}
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	stored, err := k.Store.Ended(ctx, first.Add(-clockSkew))
	if err != nil {
		return nil, err
	}
	for _, r := range k.unstored {
		if r.Kind == ledger.KindEnd {
			stored[r.Key] = true
		}
	}
	return stored, nil
}

// clockSkew is by how much the clocks of two machines may differ.
const clockSkew = time.Hour

// sample takes the measurements since the last sample.
func (k *Keeper) sample() {
	k.State.View(func(r *state.Reader) {
		for key, a := range k.open {
			use, known := r.Cluster.UseOf(a.node, key.GPU, a.instance, a.alone)
			if !known || !use.At.After(a.at) {
				continue
			}
			a.at = use.At
			if use.Milli != view.Unmeasured {
				a.compute.Add(use.Milli)
			}
			if use.MemoryMiB != view.Unmeasured {
				a.memory.Add(use.MemoryMiB)
			}
		}
	})
}

// use stores the samples of an entry.
func (k *Keeper) use(key ledger.Key, at time.Time) {
	a := k.open[key]
	if a.compute.IsZero() && a.memory.IsZero() {
		return
	}
	k.unstored = append(k.unstored, ledger.Record{Kind: ledger.KindUse, At: at.UTC(), Key: key, Compute: a.compute, Memory: a.memory})
	a.compute, a.memory = ledger.Sketch{}, ledger.Sketch{}
}

// useAll stores the samples of all entries.
func (k *Keeper) useAll(now time.Time) {
	for key := range k.open {
		k.use(key, now)
	}
}

// note stores until when the service watches, and the measurements until then.
func (k *Keeper) note(now time.Time) {
	k.useAll(now)
	k.unstored = append(k.unstored, ledger.Record{Kind: ledger.KindSeen, At: now.UTC()})
	k.noted = now
}
