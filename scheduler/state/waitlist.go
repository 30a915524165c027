// SPDX-License-Identifier: MPL-2.0

package state

import (
	"encoding/json"
	"iter"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Waiting is a group some of whose allocs Nomad cannot place.
type Waiting struct {
	Job     nomad.JobKey
	Group   string
	Missing int
	Turn    quota.Turn
	// Held is what kind of thing it waits for; empty where Nomad starts it wherever room comes free.
	Held string
	// Alike is the same for all groups that were recorded as asking for the same in
	// every way; empty where the group has something of its own.
	Alike string

	cost place.Charge // of an alloc
}

// waitlist keeps what waits in lanes, since the order of two groups changes only with
// what their queues hold.
type waitlist struct {
	clock    clock
	settings *settings
	jobs     *jobs
	runs     *lifetimes
	promises *promises
	records  *records
	books    *books
	lanes    map[lane]*laneList
	of       map[nomad.JobKey][]*Waiting
}

func newWaitlist(c clock, s *settings, j *jobs, runs *lifetimes, p *promises, r *records, b *books) *waitlist {
	return &waitlist{clock: c, settings: s, jobs: j, runs: runs, promises: p, records: r, books: b, lanes: map[lane]*laneList{}, of: map[nomad.JobKey][]*Waiting{}}
}

// lane is what waits with one priority in one queue for one kind of thing. What counts as
// having come earlier is always before what counts as later.
type lane struct {
	priority    int
	queue, held string
}

type laneList struct {
	lane
	groups []*Waiting // earliest first
	owes   place.Charge
}

// owes is what a group costs its queue as soon as Nomad finds room for it.
func (w *Waiting) owes() place.Charge {
	if w.Held != "" {
		return place.Charge{}
	}
	return w.Asks()
}

// Asks is what the allocs that are missing cost at least; nothing is known of a group
// that was never recorded.
func (w *Waiting) Asks() place.Charge { return w.cost.Times(int64(w.Missing)) }

func (w *Waiting) lane() lane { return lane{w.Turn.Priority, w.Turn.Queue, w.Held} }

// byAge is the order within a lane.
func byAge(x, y *Waiting) int { return x.Turn.CompareAge(y.Turn) }

// enlist brings what waits of a job up to date with how it is registered and recorded,
// and with what Nomad cannot place of it.
func (l *waitlist) enlist(key nomad.JobKey) {
	for _, w := range l.of[key] {
		l.remove(w)
	}
	delete(l.of, key)
	j, b := l.jobs.Job(key), l.jobs.Blocked(key)
	if j == nil || b == nil || !j.GPU || j.Stopped {
		return
	}
	for i := range j.Groups {
		g := &j.Groups[i]
		if b.Missing[g.Name] == 0 || !g.GPU() {
			continue
		}
		w := &Waiting{Job: key, Group: g.Name, Missing: b.Missing[g.Name], Turn: turn(key, g.Name, j.Priority, l.jobs.QueueOf(key, g.Name), b.Since)}
		w.Turn.Later = l.later(key, g.Name, w.Turn.Queue, g.TimeLimit)
		if r := l.records.Record(key); r != nil {
			if known, found := r.Groups[g.Name]; found {
				w.note(&known, len(j.Groups) == 1 && (j.Scaled || !j.Dispatched))
			}
		} else if parent := l.records.Record(nomad.JobKey{Namespace: key.Namespace, ID: j.Parent}); j.Parent != "" && parent != nil {
			w.cost = parent.Groups[g.Name].Cost // until it has a record of its own
		}
		l.insert(w)
	}
}

// note takes the record of a group, which may be the only one of a job that can
// be changed: groups of one job do not make way for each other.
func (w *Waiting) note(g *record.Group, only bool) {
	w.cost = g.Cost
	switch {
	case g.Decision.Hold != nil:
		w.Held = g.Decision.Hold.Kind
	case g.Decision.Slots > 0: // it may not start outside of its own room
		w.Held = view.WaitsForRoom
	}
	a := g.Ask
	if !only || a.Gang || a.Reservation != "" || a.Distinct != "" || g.Attempts.Times > 0 || len(g.Excluded) > 0 || len(g.Only) > 0 {
		return
	}
	a.JobID, a.Group = "", ""
	text, err := json.Marshal([]any{a, g.Decision.Tasks, g.Covered, g.Direct, w.Missing, w.Turn.Priority, w.Turn.Queue, w.Held})
	if err == nil {
		w.Alike = string(text)
	}
}

func (l *waitlist) insert(w *Waiting) {
	at := l.lanes[w.lane()]
	if at == nil {
		at = &laneList{lane: w.lane()}
		l.lanes[w.lane()] = at
	}
	i, _ := slices.BinarySearchFunc(at.groups, w, byAge)
	at.groups = slices.Insert(at.groups, i, w)
	at.owes = at.owes.Plus(w.owes())
	l.of[w.Job] = append(l.of[w.Job], w)
}

func (l *waitlist) remove(w *Waiting) {
	at := l.lanes[w.lane()]
	if i, found := slices.BinarySearchFunc(at.groups, w, byAge); found {
		at.groups = slices.Delete(at.groups, i, i+1)
		at.owes = at.owes.Plus(w.owes().Times(-1))
	}
	if len(at.groups) == 0 {
		delete(l.lanes, w.lane())
	}
}

// AnyWaiting reports whether anything waits for GPUs.
func (l *waitlist) AnyWaiting() bool { return len(l.lanes) > 0 }

// Waiting yields the groups that wait for one of some kinds of things, or for anything where no kind
// is named, in the order in which they are tried.
func (l *waitlist) Waiting(kinds ...string) iter.Seq[*Waiting] {
	return l.inOrder(func(l *lane) bool { return len(kinds) == 0 || slices.Contains(kinds, l.held) })
}

// inOrder yields what waits in the selected lanes, always the first of that lane whose
// first has the next turn. The state must not change meanwhile.
func (l *waitlist) inOrder(selects func(*lane) bool) iter.Seq[*Waiting] {
	return func(yield func(*Waiting) bool) {
		var lanes [][]*Waiting
		for _, one := range l.lanes {
			if selects(&one.lane) {
				lanes = append(lanes, one.groups)
			}
		}
		order := l.books.plan.Order()
		byFirst := func(x, y []*Waiting) int { return order.Compare(x[0].Turn, y[0].Turn) }
		slices.SortFunc(lanes, byFirst)
		for len(lanes) > 0 {
			first := lanes[0]
			if !yield(first[0]) {
				return
			}
			lanes = lanes[1:]
			if first = first[1:]; len(first) == 0 {
				continue
			}
			at, _ := slices.BinarySearchFunc(lanes, first, byFirst)
			lanes = slices.Insert(lanes, at, first)
		}
	}
}

// owedForRoom is the part of [Reader.Owed] that waits for room.
func (l *waitlist) owedForRoom(queue string, without nomad.JobKey) place.Charge {
	var sum place.Charge
	for at, one := range l.lanes {
		if at.held == "" && l.settings.config.Within(at.queue, queue) {
			sum = sum.Plus(one.owes)
		}
	}
	if sum == (place.Charge{}) {
		return sum
	}
	paid := func(w *Waiting, allocs int) {
		if w.Held == "" && l.settings.config.Within(w.Turn.Queue, queue) {
			sum = sum.Plus(w.cost.Times(-int64(min(allocs, w.Missing))))
		}
	}
	for _, w := range l.of[without] {
		paid(w, w.Missing)
	}
	promised := func(key nomad.JobKey) {
		for _, w := range l.of[key] {
			if key != without {
				paid(w, l.promises.Assumed(key, w.Group))
			}
		}
	}
	if len(l.promises.byJob) > len(l.of) { // as when many were admitted in one moment
		for key := range l.of {
			promised(key)
		}
		return sum
	}
	for key := range l.promises.byJob {
		promised(key)
	}
	return sum
}

// Turn is a group's place in the order of what waits: what waits already keeps the
// time since when it does. The limit is how long its author says that it runs at most; 0: nothing
// is said.
func (l *waitlist) Turn(key nomad.JobKey, group string, priority int, queue string, limit time.Duration) quota.Turn {
	q, _ := l.settings.config.QueueFor(key.Namespace, queue) // an error: no queue, which is checked elsewhere
	since := l.clock.Now()
	if l.jobs.Blocked(key).Allocs(group) > 0 {
		since = l.jobs.Blocked(key).Since
	}
	t := turn(key, group, priority, q, since)
	for _, w := range l.of[key] {
		if w.Group == group { // what is learned meanwhile changes no order
			t.Later = w.Turn.Later
			return t
		}
	}
	t.Later = l.later(key, group, t.Queue, limit)
	return t
}

// later is how much later a group counts as having come, where in its queue the shortest goes first.
func (l *waitlist) later(key nomad.JobKey, group, queue string, limit time.Duration) time.Duration {
	if l.settings.config.OrderOf(queue) != config.OrderShortest {
		return 0
	}
	return quota.Later(l.runs.expected(key, group, limit))
}

func turn(key nomad.JobKey, group string, priority int, q *config.Queue, since time.Time) quota.Turn {
	t := quota.Turn{ID: key.String() + "/" + group, Priority: priority, Since: since}
	if q != nil {
		t.Queue, t.Priority = q.Name, min(priority, q.MaxPriority)
	}
	return t
}
