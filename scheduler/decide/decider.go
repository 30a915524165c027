package decide

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Decider answers asks. One replica decides at a time.
type Decider struct {
	book    *Book
	store   Store
	leading func() bool

	mu     sync.Mutex
	before map[nomad.JobKey]*Record // what an unsettled decision replaced
}

// NewDecider decides about a book. Leading says whether this replica may.
func NewDecider(b *Book, s Store, leading func() bool) *Decider {
	return &Decider{book: b, store: s, leading: leading, before: map[nomad.JobKey]*Record{}}
}

// Book returns what the decider believes.
func (d *Decider) Book() *Book { return d.book }

// Decide answers the asks of one job, in their order. With dryRun nothing is
// booked or recorded. The error is an *admit.Refusal for the user, or wraps
// ErrNotLeading, ErrBlind or ErrBusy.
func (d *Decider) Decide(ctx context.Context, asks []admit.Ask, dryRun bool) ([]admit.Decision, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	key := nomad.JobKey{Namespace: asks[0].Namespace, ID: asks[0].JobID}
	if !dryRun && !d.leading() {
		return nil, fmt.Errorf("decide about job %q: %w", key, ErrNotLeading)
	}
	if err := d.book.Ready(); err != nil {
		return nil, err
	}
	have, err := d.read(ctx, key)
	if err != nil {
		return nil, err
	}
	next, answers, undo, err := d.book.decide(key, asks, have, dryRun)
	if err != nil || dryRun {
		return answers, err
	}
	if !d.leading() {
		undo()
		return nil, fmt.Errorf("decide about job %q: %w", key, ErrNotLeading)
	}
	if err := next.write(ctx, d.store); err != nil {
		undo()
		if errors.Is(err, nomad.ErrConflict) {
			return nil, &admit.Refusal{Status: http.StatusConflict, Text: ErrBusy.Error()}
		}
		return nil, err
	}
	d.book.remember(next)
	d.mu.Lock()
	d.before[key] = have
	d.mu.Unlock()
	return answers, nil
}

// read returns what was decided about a job. Where the Variable is lost, what
// this replica remembers of it counts.
func (d *Decider) read(ctx context.Context, key nomad.JobKey) (*Record, error) {
	r, err := readRecord(ctx, d.store, key)
	if err != nil || r.stored.index != 0 {
		return r, err
	}
	if known := d.book.recordOf(key); known != nil {
		lost := known.clone()
		lost.stored = stored{}
		return lost, nil
	}
	return r, nil
}

// recordOf is the record of a job that Nomad has.
func (b *Book) recordOf(key nomad.JobKey) *Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.jobs[key] == nil {
		return nil
	}
	return b.records[key]
}

// Settle follows a decision: accepted is whether Nomad took the job. A
// decision is recorded before Nomad hears of it, so that a crash in between
// cannot lose what a running job was given; one that Nomad refused is taken
// back here.
func (d *Decider) Settle(ctx context.Context, asks []admit.Ask, _ []admit.Decision, accepted bool) {
	if len(asks) == 0 {
		return
	}
	key := nomad.JobKey{Namespace: asks[0].Namespace, ID: asks[0].JobID}
	d.mu.Lock()
	before := d.before[key]
	delete(d.before, key)
	d.mu.Unlock()
	if accepted {
		d.book.settled(key)
		d.book.learnOf(asks)
		d.consume(ctx, asks)
		return
	}
	if before == nil {
		return
	}
	if err := d.book.takeBack(ctx, before, d.store); err != nil {
		d.book.Trouble(fmt.Errorf("take back the decision about job %q: %w", key, err))
	}
}

// consume forgets the reservations that the job has claimed: from here on the
// job itself holds the room.
func (d *Decider) consume(ctx context.Context, asks []admit.Ask) {
	for i := range asks {
		if asks[i].Reservation == "" || !d.book.claimed(asks[i].Reservation, nomad.JobKey{Namespace: asks[i].Namespace, ID: asks[i].JobID}) {
			continue
		}
		if err := d.Forget(ctx, Reservation{ID: asks[i].Reservation}); err != nil {
			d.book.Trouble(err)
		}
	}
}

// claimed reports whether a job has taken a reservation's room.
func (b *Book) claimed(reservation string, key nomad.JobKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.claims[reservation]
	return r != nil && r.ClaimedBy == key.String()
}

// takeBack ends a job's flights and stores its earlier record again.
func (b *Book) takeBack(ctx context.Context, before *Record, s Store) error {
	b.mu.Lock()
	key := before.key()
	b.dropFlights(key)
	b.unclaim(key)
	now := b.records[key]
	b.version++
	b.mu.Unlock()
	if now == nil || now.stored.index == before.stored.index {
		return nil
	}
	if len(before.Groups) == 0 {
		b.forgetRecord(key)
		return now.remove(ctx, s)
	}
	again := before.clone()
	again.stored = now.stored
	if err := again.write(ctx, s); err != nil {
		return err
	}
	b.remember(again)
	return nil
}

// Trouble notes something that should not have happened, for people.
func (b *Book) Trouble(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log.trouble(b.now(), err)
	b.version++
}

func (b *Book) forgetRecord(key nomad.JobKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.records, key)
	b.compare(key)
}

// Ready reports why the book cannot be decided with, if so.
func (b *Book) Ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready()
}

// tooOld is how long Nomad may be silent until the view is no view any more.
const tooOld = time.Minute

func (b *Book) ready() error {
	switch {
	case b.synced.IsZero() && b.blind != nil:
		return fmt.Errorf("%w: %w", ErrBlind, b.blind)
	case b.synced.IsZero():
		return fmt.Errorf("%w: Nomad has not answered yet", ErrBlind)
	case b.now().Sub(b.synced) > tooOld:
		return fmt.Errorf("%w: Nomad was last heard %s ago", ErrBlind, b.now().Sub(b.synced).Round(time.Second))
	}
	return nil
}

// decide answers the asks under one lock, so that the next decision sees the
// flights of this one. Undo takes the flights back.
func (b *Book) decide(key nomad.JobKey, asks []admit.Ask, have *Record, dryRun bool) (*Record, []admit.Decision, func(), error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.flightsOf(key)
	next := &Record{Version: RecordVersion, At: b.now(), Namespace: key.Namespace, JobID: key.ID, Groups: map[string]GroupRecord{}, stored: have.stored}
	claimed := b.claimedBy(key)
	undo := func() {
		b.restore(key, before)
		if !claimed {
			b.unclaim(key)
		}
	}
	for i := range asks {
		g, err := b.group(key, &asks[i], have)
		if err != nil {
			undo()
			return nil, nil, nil, err
		}
		next.Groups[asks[i].Group] = g
	}
	b.holdGang(key, asks, next.Groups)
	answers := make([]admit.Decision, len(asks))
	for i := range asks {
		answers[i] = next.Groups[asks[i].Group].Decision
	}
	if dryRun {
		undo()
		return nil, answers, nil, nil
	}
	b.version++
	return next, answers, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		undo()
	}, nil
}

// remember keeps a record that was written.
func (b *Book) remember(r *Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keep(r)
	b.version++
}

// keep takes a record as that of its job.
func (b *Book) keep(r *Record) {
	for name, g := range r.Groups {
		g.print = g.Ask.Fingerprint(&g.Decision)
		r.Groups[name] = g
	}
	b.records[r.key()] = r
	b.compare(r.key())
}

// settled notes that Nomad has what was recorded about a job.
func (b *Book) settled(key nomad.JobKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.records[key]; r != nil {
		r.settled = b.now()
	}
}

// learnOf tells people and the core what was asked for and decided. Nomad has taken
// it: what it refused, to whoever may not submit, is nobody's demand.
func (b *Book) learnOf(asks []admit.Ask) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(asks) == 0 {
		return
	}
	r := b.records[nomad.JobKey{Namespace: asks[0].Namespace, ID: asks[0].JobID}]
	if r == nil {
		return
	}
	for i := range asks {
		g, known := r.Groups[asks[i].Group]
		if !known || b.log.knows(g.Shown) {
			continue // an unchanged job that came again is no new demand
		}
		b.log.decision(g.Shown)
		q, err := b.config.QueueFor(asks[i].Namespace, asks[i].Queue)
		if err != nil {
			continue
		}
		parts, err := b.parts(&asks[i], q)
		if err != nil {
			continue
		}
		for k := range parts {
			b.plan.Arrive(&parts[k].req)
		}
	}
	b.version++
}

// flightsOf copies the flights of a job.
func (b *Book) flightsOf(key nomad.JobKey) []flight {
	var list []flight
	for _, f := range b.flights {
		if f.key == key {
			list = append(list, *f)
		}
	}
	return list
}

// restore replaces the flights of a job by earlier ones.
func (b *Book) restore(key nomad.JobKey, before []flight) {
	b.dropFlights(key)
	for _, f := range before {
		b.fly(key, f.group, f.usage, f.keep)
	}
}

// group decides about one ask.
func (b *Book) group(key nomad.JobKey, a *admit.Ask, have *Record) (GroupRecord, error) {
	q, err := b.config.QueueFor(a.Namespace, a.Queue)
	if err != nil {
		return GroupRecord{}, forbidden("group %q: %s", a.Group, err)
	}
	parts, err := b.parts(a, q)
	if err != nil {
		return GroupRecord{}, err
	}
	c := &choosing{book: b, key: key, ask: a, queue: q, parts: parts}
	was, known := c.known(have)
	same := known && b.alive(key, have)
	b.dropGroupFlights(key, a.Group)
	if same {
		c.asBefore(&was)
	}
	if err := c.shape(); err != nil {
		return GroupRecord{}, err
	}
	if same {
		was.Direct = false
		return c.again(was)
	}
	return c.first()
}

// alive reports whether the job may have allocs that a changed device block
// would replace: Nomad has it, or it was admitted a moment ago.
func (b *Book) alive(key nomad.JobKey, have *Record) bool {
	if j := b.jobs[key]; j != nil {
		return !j.Stopped || slices.ContainsFunc(b.allocsOf(key), func(a *nomad.Alloc) bool { return !a.Stopping })
	}
	return b.now().Sub(have.At) < unseen
}

func (b *Book) allocsOf(key nomad.JobKey) []*nomad.Alloc {
	return slices.Collect(maps.Values(b.byJob[key]))
}

// form places the ask on the empty cluster: which device blocks it takes at
// all, and whether any node could ever hold it.
func (b *Book) form(a *admit.Ask, parts []part) (unit, error) {
	u, err := b.board(true).place(parts)
	if !errors.Is(err, place.ErrNoRoom) {
		return u, err
	}
	var q *config.Queue
	for i := range parts {
		q = b.config.Queue(parts[i].req.Queue)
		e, err := b.ideal.Explain(&parts[i].req, b.now())
		if err != nil {
			return unit{}, err
		}
		if e.Fits == 0 {
			return unit{}, impossible(a, q, e)
		}
	}
	return unit{}, impossible(a, q, place.Explanation{Reasons: []place.Reason{{Nodes: len(b.nodes), Why: "not all of its device blocks together on one node"}}})
}

func (b *Book) board(empty bool) board {
	if empty {
		return board{b.empty, b.ideal, b.nodeIDs}
	}
	return board{b.snap, b.plan, b.nodeIDs}
}
