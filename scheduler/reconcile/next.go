// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Item is something to do now.
type Item struct {
	Job      nomad.JobKey
	Revision decide.Revision
	// Evict is set when room must be made first, or when what the revision
	// holds must stop.
	Evict *decide.Eviction
	// Seat is set when a free seat is taken, and what sits there steps aside.
	Seat *decide.Seat
}

// settled is how long a group must have waited before anything is evicted for it:
// Nomad may be about to place it.
const settled = 2 * time.Second

// Finder finds the next thing to put right. It remembers fruitless searches, and is
// used by one goroutine.
type Finder struct {
	tried    map[question]trial
	window   *decide.Window       // of this call of Next; see turns
	still    trial                // since when there is nothing to do
	moved    trial                // when the state changed last
	refusals map[string]time.Time // since when Nomad does not start a group
	// aligned is how many items in a row brought a job together with its record.
	aligned int
}

// NewFinder returns a finder that has looked for nothing yet.
func NewFinder() *Finder {
	return &Finder{tried: map[question]trial{}, refusals: map[string]time.Time{}}
}

// question is the kind and the subject of a search: a group, or all that are alike.
type question struct {
	what look
	who  string
}

type look uint8

const (
	lookForStart look = iota
	lookForQuota
	lookForVictims
	lookForOther // room than the kept one, for groups held for their turn
)

// trial is when something was looked for in vain, and in which epoch.
type trial struct {
	epoch uint64
	at    time.Time
}

// retryAfter is the back-off after a fruitless search while nothing changes that
// could make a difference, other than time.
const retryAfter = 5 * time.Second

// who is the subject of a search: a group, with all that are alike where it is one of those
// and nothing of its job runs. A search in vain for the first of them, in waiting order, is
// in vain for the others too.
func who(tx *state.Tx, w *state.Waiting) string {
	if w.Alike == "" || len(tx.Cluster.AllocsOf(w.Job)) > 0 {
		return w.Turn.ID
	}
	return w.Alike
}

func (f *Finder) triedInVain(tx *state.Tx, q question) bool {
	t, found := f.tried[q]
	return found && t.epoch == tx.Capacity.Epoch() && tx.Now().Sub(t.at) < retryAfter
}

func (f *Finder) noteVain(tx *state.Tx, q question) {
	f.tried[q] = trial{tx.Capacity.Epoch(), tx.Now()}
}

// forgetTrials forgets what would be looked for again anyway.
func (f *Finder) forgetTrials(tx *state.Tx) {
	for q, t := range f.tried {
		if tx.Now().Sub(t.at) >= retryAfter {
			delete(f.tried, q)
		}
	}
	maps.DeleteFunc(f.refusals, func(_ string, since time.Time) bool { return tx.Now().Sub(since) >= time.Minute })
}

// Next returns the next thing to do about a job that skip does not name. Nil means
// that everything that waits has to wait. Groups to let go come before groups that
// need evictions, which need mayEvict; each in waiting order.
func (f *Finder) Next(tx *state.Tx, skip map[string]bool, mayEvict bool) *Item {
	if tx.Cluster.Ready() != nil {
		return nil
	}
	if f.quiet(tx) && len(skip) == 0 {
		return nil
	}
	tx.CheckIdle()
	f.forgetTrials(tx)
	f.window = nil
	item := f.next(tx, skip, mayEvict)
	if item == nil && mayEvict && len(skip) == 0 {
		f.still = trial{tx.Capacity.Epoch(), tx.Now()}
	}
	return item
}

// quiet reports whether nothing has changed for some time, and nothing was found a
// moment ago.
func (f *Finder) quiet(tx *state.Tx) bool {
	now := trial{tx.Capacity.Epoch(), tx.Now()}
	if f.moved.epoch != now.epoch {
		f.moved = now
	}
	return now.at.Sub(f.moved.at) > retryAfter && f.still.epoch == now.epoch && now.at.Sub(f.still.at) < retryAfter
}

func (f *Finder) next(tx *state.Tx, skip map[string]bool, mayEvict bool) *Item {
	waiting := slices.Collect(tx.Queue.Waiting())
	if item := f.firstOf(tx, waiting, skip, f.letGo); item != nil {
		return item
	}
	if item := fallsBack(tx, waiting, skip); item != nil {
		return item
	}
	if f.aligned < alignsInARow {
		if item := drifted(tx, skip); item != nil {
			f.aligned++
			return item
		}
	}
	f.aligned = 0
	if item := f.others(tx, waiting, skip, mayEvict); item != nil {
		return item
	}
	return drifted(tx, skip)
}

// alignsInARow is how many jobs in a row are brought into line with their record before the finder
// looks for something else: Nomad may start children of many periodic jobs faster than that.
const alignsInARow = 10

// others looks for the last things to do: nodes that groups get back, system groups that may spread,
// queues above their limit, gangs that run only in part, and evictions.
func (f *Finder) others(tx *state.Tx, waiting []*state.Waiting, skip map[string]bool, mayEvict bool) *Item {
	if item := reopen(tx, skip); item != nil {
		return item
	}
	if item := widen(tx, waiting, skip); item != nil || !mayEvict {
		return item
	}
	if item := bringBack(tx, skip); item != nil {
		return item
	}
	if item := brokenGang(tx, waiting, skip); item != nil {
		return item
	}
	return f.firstOf(tx, waiting, skip, f.evict)
}

// firstOf is the first thing to do for a waiting group. Jobs not registered as
// decided are left to drifted.
func (f *Finder) firstOf(tx *state.Tx, waiting []*state.Waiting, skip map[string]bool, find func(*state.Tx, *record.Group, *state.Waiting) *Item) *Item {
	for _, w := range waiting {
		r := tx.Queue.Record(w.Job)
		if r == nil || len(skip) > 0 && skip[w.Job.String()] || tx.Queue.Drifted(w.Job) || tx.Queue.Unrecorded(w.Job) {
			continue
		}
		g, ok := r.Groups[w.Group]
		if !g.FellBack.IsZero() {
			continue // the news that it asks for no GPU is on its way
		}
		promised := tx.Capacity.Assumed(w.Job, w.Group) > 0 // its room is on its way; what starts as one is held until it is there
		if ok && (!promised || g.Decision.Hold != nil || f.refused(tx, &g, w)) {
			if item := find(tx, &g, w); item != nil {
				return item
			}
		}
	}
	return nil
}

// letGo returns the item that lets a waiting group start: one that ends its hold, or that gives it
// other nodes or other device blocks, or its place among what waits where it does not start.
func (f *Finder) letGo(tx *state.Tx, g *record.Group, w *state.Waiting) *Item {
	if tx.Cluster.Unchangeable(w.Job) || g.Decision.Hold == nil && !tx.Queue.Repeats(w.Job).May() {
		return nil
	}
	if g.Decision.Hold != nil {
		stops := tx.Cluster.Live(w.Job, w.Group)+w.Missing > g.Ask.Count && tx.Within(tx.Queue.Record(w.Job).At, state.Echo) // something is about to, and is not seen to yet
		if stops || !f.wouldStart(tx, g, w) && !f.waitsForQuotaNow(tx, g, w) {
			return nil
		}
	} else if f.refused(tx, g, w) {
		if tx.Cluster.Scaled(w.Job) && tx.Cluster.Live(w.Job, w.Group) > 0 {
			return nil // it goes back as one, with what runs of it
		}
		return &Item{Job: w.Job, Revision: decide.Revision{Group: w.Group, SentBack: decide.NotStarted(tx.Cluster.Blocked(w.Job).Why[w.Group])}}
	} else if !decide.GoesBack(tx, w.Job, g) && (g.Decision.Slots == 0 || decide.Rests(g, tx.Now()) || !f.wouldStart(tx, g, w)) {
		return nil
	}
	return &Item{Job: w.Job, Revision: decide.Revision{Group: w.Group, Retry: true, Include: over(tx, tx.Queue.Record(w.Job), g.Excluded)}}
}

// fallsBack finds a group that has waited for GPUs as long as it is to. One that was changed
// around the service, and could never have them, falls back as well. One whose record is lost
// does so where it cannot be recorded; without the service's marks, Nomad alone places it.
func fallsBack(tx *state.Tx, waiting []*state.Waiting, skip map[string]bool) *Item {
	for _, w := range waiting {
		r, known := tx.Queue.Record(w.Job), false
		if r != nil {
			_, known = r.Groups[w.Group]
		}
		if skip[w.Job.String()] || r != nil && tx.Queue.UnderWay(r) || !known && !tx.Queue.Drifted(w.Job) {
			continue
		}
		if decide.FallsBack(tx, w) {
			return &Item{Job: w.Job, Revision: decide.Revision{Group: w.Group, Align: !known, OnCPU: true}}
		}
	}
	return nil
}

// refused reports whether Nomad has not started a group for as long as news take.
func (f *Finder) refused(tx *state.Tx, g *record.Group, w *state.Waiting) bool {
	if !decide.Refused(tx, w.Job, g) {
		delete(f.refusals, w.Turn.ID)
		return false
	}
	since, known := f.refusals[w.Turn.ID]
	if !known {
		f.refusals[w.Turn.ID] = tx.Now()
	}
	return known && tx.Now().Sub(since) >= state.Echo
}

// turns is whose turn it is, worked out at most once per call of Next.
func (f *Finder) turns(tx *state.Tx) *decide.Window {
	if f.window == nil {
		f.window = decide.NewWindow(tx)
	}
	return f.window
}

func (f *Finder) wouldStart(tx *state.Tx, g *record.Group, w *state.Waiting) bool {
	q := question{lookForStart, who(tx, w)}
	if f.triedInVain(tx, q) {
		return false
	}
	if decide.WouldStart(tx, w.Job, g, f.turns(tx)) {
		return true
	}
	f.noteVain(tx, q)
	return false
}

// waitsForQuotaNow reports whether a group that was held for something else waits for its quota by
// now, and is to say so: what waits for quota has others leave it that, and may have others of its
// queue go. A child that is registered again is let be, since Nomad takes it for a job of its own then.
func (f *Finder) waitsForQuotaNow(tx *state.Tx, g *record.Group, w *state.Waiting) bool {
	q := question{lookForQuota, w.Turn.ID}
	j := tx.Cluster.Job(w.Job)
	if j == nil || j.Parent != "" && !j.Scaled || f.triedInVain(tx, q) {
		return false
	}
	if tx.Queue.Repeats(w.Job).May() && decide.WouldWaitForQuota(tx, w.Job, g, f.turns(tx)) {
		return true
	}
	f.noteVain(tx, q)
	return false
}

// evict finds the victims for a group that waits for room, or, in its own queue,
// for quota.
func (f *Finder) evict(tx *state.Tx, g *record.Group, w *state.Waiting) *Item {
	q := question{lookForVictims, who(tx, w)}
	hold := g.Decision.Hold
	switch {
	case !tx.Config().Preemption.Enabled, tx.Now().Sub(w.Turn.Since) < settled:
		return nil
	case tx.Capacity.Assumed(w.Job, w.Group) > 0, !decide.MayEvictFor(g, tx.Now()):
		return nil
	case hold != nil && tx.Cluster.Unchangeable(w.Job): // it could not be let go
		return nil
	case hold == nil && g.Decision.Slots > 0 && !tx.Queue.Repeats(w.Job).May(): // it could not be given one alloc more
		return nil
	case hold != nil && (hold.Kind == view.WaitsForRoom || hold.Kind == view.WaitsForHeadroom):
	case hold != nil && hold.Kind == view.WaitsForPriority:
		q.what = lookForOther
	case hold != nil && hold.Kind != view.WaitsForQuota:
		return nil
	}
	if f.triedInVain(tx, q) {
		tx.NoteFutile(w.Job, w.Group, true)
		return nil
	}
	var seat *decide.Seat
	if q.what == lookForVictims { // a seat is taken where it is, also in room that is kept
		tx.Try(func() { seat = decide.TakeSeat(tx, w.Job, g) })
	}
	if seat != nil {
		return &Item{Job: w.Job, Seat: seat, Revision: decide.Revision{Group: w.Group, Prefer: seat.Room.Node(), Room: seat.Room}}
	}
	if tx.Capacity.WasIdle(w.Job) { // else it would take the room back, and leave it unused again
		return nil
	}
	var e *decide.Eviction
	tx.Try(func() {
		if hold != nil && (g.Ask.Gang || g.Ask.Child || w.Missing > 1 && hold.Kind != view.WaitsForRoom) { // a held group is let go as one
			e = decide.EvictForAll(tx, w.Job, g, f.turns(tx))
		} else {
			e = decide.Evict(tx, w.Job, g, f.turns(tx))
		}
	})
	tx.NoteFutile(w.Job, w.Group, e == nil)
	if e == nil {
		f.noteVain(tx, q)
		return nil
	}
	if len(e.Victims) == 0 { // stopping allocs leave enough
		if decide.OneByOne(g) { // a group that is let go as one is so when the room is there
			for _, p := range e.Promises {
				p.Assume(tx)
			}
			f.window = nil // what comes after it may have that room no more
		}
		if g.Decision.Slots > 0 { // Nomad starts it there once it may have one alloc more
			return &Item{Job: w.Job, Revision: madeFor(w.Group, e)}
		}
		return nil
	}
	if hold != nil && hold.Kind == view.WaitsForQuota {
		takeQuota(tx, e)
	}
	item := &Item{Job: w.Job, Evict: e, Revision: madeFor(w.Group, e)}
	return item
}

// madeFor is the revision of a group that room is made for: a held one is let go once all of its
// room is there.
func madeFor(group string, e *decide.Eviction) decide.Revision {
	if e.Room == nil {
		return decide.Revision{Group: group, RoomMade: e.Promises}
	}
	return decide.Revision{Group: group, Prefer: e.Room.Node(), Room: e.Room}
}

// takeQuota names the quota that victims give up: the queue whose limit bounds
// theirs and the waiting one.
func takeQuota(tx *state.Tx, e *decide.Eviction) {
	var queues []string
	for _, p := range e.Promises {
		if q := tx.Cluster.QueueOf(p.Job, p.Group); q != nil && !slices.Contains(queues, q.Name) {
			queues = append(queues, q.Name)
		}
	}
	for i := range e.Victims {
		v := &e.Victims[i]
		for _, q := range queues {
			v.Quota = cmp.Or(v.Quota, tx.Config().SharedLimit(v.Queue, q))
		}
	}
}
