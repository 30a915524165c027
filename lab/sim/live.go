// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// LiveOptions say how [Live] replays a workload.
type LiveOptions struct {
	// Queue lets tasks wait that find no room; without it they are lost. What
	// waits is tried whenever a task arrives or ends, in order of arrival (with
	// the product's policies: in their order), and tasks behind one that
	// still does not fit may go ahead of it.
	Queue bool
	// All counts the whole time, and waits until they end, also after the last arrival:
	// what a cluster really was asked for has no steady state to wait for.
	All bool
	// Quotas are the queues of a cluster, for the product's policies.
	Quotas []place.Queue
	// HalfLife is after how long what a queue used counts half in the order; 0: it
	// does not count.
	HalfLife time.Duration
	// Shortest has what is expected to run for the shortest time go first within a queue and a
	// priority, by its limit and by how long its like ran; see [quota.Later]. It needs a policy of
	// the product.
	Shortest bool
	// Outlook estimates when tasks will start that begin to wait, for one in Outlook of
	// them, by how long those ran that have ended; 0: none. It needs a policy of the
	// product, and no priorities and queues.
	Outlook int
	// Strict has tasks behind one that does not fit wait too.
	Strict bool
	// Limits are what the service bounds waits and evictions by: with them a replay keeps to
	// them, and measures its bounds. Nil: there are none. They need a policy of the product.
	Limits *Limits
	// learned is what estimates learn of a task that has ended: nil, it was not like that;
	// limit is how long it says itself that it runs. Tests distort them.
	learned func(*Task) *Task
	limit   func(*Task) time.Duration
	// told is told of each start, hold and eviction, where it is set.
	told func(now float64, what string, task int, more string)
	// Now is read around every decision; nil: decisions are not timed.
	Now func() time.Time
}

// warmUp is the part of the time until the last arrival that is not measured.
const warmUp = 1.0 / 3

// Live replays arrivals and departures through a policy. With a policy of the
// product tasks with priorities are evicted for higher ones, and for quotas
// that are wanted back; they wait again then and lose their work.
func Live(nodes []Node, tasks []Task, p Placer, o LiveOptions) (LiveResult, error) {
	if !slices.IsSortedFunc(tasks, func(a, b Task) int { return cmp.Compare(a.ArriveSecond, b.ArriveSecond) }) {
		return LiveResult{}, fmt.Errorf("replay: tasks are not in order of arrival")
	}
	l := &live{
		LiveOptions: o, placer: p, tasks: tasks, running: make([]*running, len(tasks)), why: make([]hold, len(tasks)), held: map[string]int64{},
		empty: newCluster(nodes), capacity: Capacity(nodes), end: tasks[len(tasks)-1].ArriveSecond,
	}
	l.result = LiveResult{Classes: map[Class]ClassResult{}, Priorities: map[int]Wait{}, Queues: map[string]Wait{}, Starts: make([]Start, len(tasks))}
	for i := range l.result.Starts {
		l.result.Starts[i].Spot.Node = -1
	}
	if planned, ok := p.(*Planned); ok && o.Queue {
		l.planned, planned.waits = planned, true
		if len(o.Quotas) > 0 {
			q, err := place.NewQuotas(o.Quotas)
			if err != nil {
				return LiveResult{}, err
			}
			l.quotas, l.past = q, quota.NewPast(o.HalfLife)
			planned.Planner.SetQuotas(q, l.past)
		}
		l.evicts = len(o.Quotas) > 0 || slices.ContainsFunc(tasks, func(t Task) bool { return t.Priority != tasks[0].Priority })
	} else if len(o.Quotas) > 0 {
		return LiveResult{}, fmt.Errorf("replay with quotas: only the product's policies keep them, and only where tasks wait")
	}
	if (o.Limits != nil || o.Strict) && l.planned == nil {
		return LiveResult{}, fmt.Errorf("bound waits: only with the product's policies, where tasks wait")
	}
	if err := l.gather(); err != nil {
		return LiveResult{}, err
	}
	if o.Limits != nil || o.Shortest {
		l.lives = newForesight(l)
	}
	if o.Limits != nil {
		l.bounded = newBounded(l, *o.Limits, nodes)
	}
	if o.Outlook > 0 {
		if l.planned == nil || l.evicts {
			return LiveResult{}, fmt.Errorf("estimate starts: only with the product's policies, where tasks wait, without priorities and queues")
		}
		l.outlook = newForesight(l)
	}
	if o.Shortest {
		if l.planned == nil {
			return LiveResult{}, fmt.Errorf("have the shortest go first: only with the product's policies, where tasks wait")
		}
		l.later = map[int]time.Duration{}
	}
	if o.Now != nil {
		l.reading = costOf(o.Now)
	}
	if !o.All {
		l.from = l.end * warmUp
	}
	if err := l.run(); err != nil {
		return LiveResult{}, err
	}
	l.summarize()
	l.result.Bounds = l.bounded.sum()
	return l.result, nil
}

type live struct {
	LiveOptions
	placer   Placer
	planned  *Planned // when what waits is ordered by the product
	quotas   *place.Quotas
	past     *quota.Past
	evicts   bool
	gangs    map[string]*gang      // by name
	outlook  *foresight            // nil: none
	lives    *foresight            // with Limits or Shortest: how long tasks ran
	later    map[int]time.Duration // with Shortest: see laterOf
	bounded  *bounded              // nil: nothing is
	begun    float64               // when something started last
	passed   []int                 // that wait and were tried before the one that is tried
	why      []hold                // by task: the reason to wait
	empty    *cluster              // with nothing on it
	tasks    []Task
	running  []*running // by task
	waiting  []int
	ends     endHeap
	now      float64
	from     float64 // begin of the measurements
	end      float64
	used     int64 // milli in use
	held     map[string]int64
	area     float64
	capacity int64
	spent    []time.Duration
	reading  time.Duration // of the clock, which is not the decision's
	result   LiveResult
}

// running is a task that runs; gone marks an end that no longer happens.
type running struct {
	task  int
	start float64
	end   float64
	spot  Spot
	gone  bool

	pinned, spent bool // it may not be evicted, or not for its own queue
}

// run goes from event to event: the next end or the next arrival. Ends that
// come at the time of an arrival come first.
func (l *live) run() error {
	next := 0
	for next < len(l.tasks) || (l.Queue && l.ends.Len() > 0) || l.mayTick() {
		came := 0 // the task that does, plus one
		if l.tick(next) {
			// what waits is tried again
		} else if l.ends.Len() > 0 && (next == len(l.tasks) || l.ends[0].end <= l.tasks[next].ArriveSecond) {
			l.advance(l.ends[0].end)
			l.finish(heap.Pop(&l.ends).(*running))
		} else {
			l.advance(l.tasks[next].ArriveSecond)
			l.arrive(next)
			next++
			came = next
		}
		if err := l.schedule(); err != nil {
			return err
		}
		if came > 0 && l.running[came-1] == nil && l.Queue {
			l.tell("hold", came-1, " for "+l.why[came-1].String())
		}
		if l.outlook != nil {
			l.outlook.look()
		}
		l.note()
	}
	return nil
}

// With limits, waiting tasks are tried again every tickSeconds, as the service does: work may be
// evicted that was spared until then. They are given up when nothing has run for idleSeconds.
const tickSeconds, idleSeconds = 30, 2 * 3600

// mayTick reports whether time alone may let something start.
func (l *live) mayTick() bool {
	return l.bounded != nil && len(l.waiting) > 0 && l.now-l.begun < idleSeconds
}

// tick lets time go by, where nothing ends or arrives sooner.
func (l *live) tick(next int) bool {
	at := l.now + tickSeconds
	if !l.mayTick() || l.ends.Len() > 0 && l.ends[0].end <= at || next < len(l.tasks) && l.tasks[next].ArriveSecond <= at {
		return false
	}
	l.advance(at)
	return true
}

// momentEvery is the least time between two moments of the timeline.
const momentEvery = 300

// note adds to the timeline.
func (l *live) note() {
	line := l.result.Timeline
	if len(line) == 0 || l.now >= line[len(line)-1].Second+momentEvery {
		l.result.Timeline = append(line, Moment{l.now, l.used, maps.Clone(l.held), len(l.waiting)})
	}
}

// hold books what a task holds (sign 1), or that it holds it no more (-1).
func (l *live) hold(t *Task, sign int64) {
	l.used += sign * t.Demand()
	l.held[t.Queue] += sign * t.Demand()
}

func (l *live) advance(to float64) {
	l.bounded.passes(to)
	if l.quotas != nil {
		l.past.Account(l.quotas, l.planned.Snapshot, clock(to))
	}
	if from, until := max(l.now, l.from), min(to, l.end); until > from {
		l.area += float64(l.used) * (until - from)
	}
	l.now = to
}

// timed runs a decision and notes how long it took.
func (l *live) timed(decide func()) {
	if l.Now == nil {
		decide()
		return
	}
	start := l.Now()
	decide()
	l.spent = append(l.spent, max(0, l.Now().Sub(start)-l.reading))
}

func (l *live) arrive(i int) {
	t := &l.tasks[i]
	l.timed(func() {
		l.placer.Arrive(t, l.now)
		if !l.complete(i) {
			return // the others of its gang are still to come
		}
		if !l.bounded.arrives(i) {
			return // the service refuses it
		}
		if !l.Queue || len(l.waiting) == 0 {
			if l.start(i) {
				return
			}
		}
		if l.Queue {
			l.waiting = append(l.waiting, i)
		}
	})
}

// tell tells of something that has happened to a task.
func (l *live) tell(what string, i int, more string) {
	if l.told != nil {
		l.told(l.now, what, i, more)
	}
}

// hold is the reason why a task waits, as in the service.
type hold uint8

const (
	forNothing hold = iota
	forRoom
	forTurn     // for what goes first
	forHeadroom // for other room than that kept for large tasks, which come often
	forQuota
)

func (h hold) String() string {
	return [...]string{"", view.WaitsForRoom, view.WaitsForPriority, view.WaitsForHeadroom, view.WaitsForQuota}[h]
}

// start starts a task where there is room.
func (l *live) start(i int) (ok bool) {
	t := &l.tasks[i]
	if g := l.gangs[t.Gang]; g != nil {
		return l.together(g)
	}
	if l.bounded != nil {
		ok, l.why[i] = l.bounded.start(i)
		return ok
	}
	spot, ok := l.placer.Place(t, l.now)
	if ok {
		l.begin(i, spot)
	}
	return ok
}

// finish ends tasks that have run long enough.
func (l *live) finish(r *running) {
	if r.gone {
		return
	}
	t := &l.tasks[r.task]
	l.placer.End(t, r.spot, l.now)
	l.running[r.task] = nil
	l.bounded.ends(r)
	l.hold(t, -1)
	if l.outlook != nil {
		l.outlook.ended(t)
	}
	if l.lives != nil {
		l.lives.ended(t)
	}
	work := int64(float64(t.Demand()) * t.RunSeconds)
	l.result.Finished++
	l.result.DoneMilliS += work
	q := l.result.Queues[t.Queue]
	q.DoneMilliS += work
	l.result.Queues[t.Queue] = q
}

// chance identifies tasks with the same chances, so that after one failed the
// others need not be tried in the same round.
type chance struct {
	key      taskKey
	gang     string
	queue    string
	priority int
}

// schedule starts the tasks that can start, and then evicts for the first for which that helps, as the
// service does: each in order, until nothing changes.
func (l *live) schedule() error {
	if len(l.waiting) == 0 {
		return nil
	}
	l.bounded.look()
	for again := true; again; {
		if l.evicts || l.Shortest {
			l.order()
		}
		again = l.each(l.start) && l.bounded != nil && slices.ContainsFunc(l.waiting, func(i int) bool { return l.why[i] == forTurn || l.why[i] == forHeadroom })
		if again || !l.evicts {
			continue
		}
		var evicted []int
		var err error
		again = l.each(func(i int) (ok bool) {
			if len(evicted) > 0 || err != nil {
				return false
			}
			evicted, ok, err = l.preempt(i)
			return ok
		})
		if err != nil {
			return err
		}
		l.waiting = append(l.waiting, evicted...)
	}
	l.bounded.ask()
	return nil
}

// each tries something for the waiting tasks, in order, and reports whether that did any good. Of tasks with
// the same chances none is tried after the first failure.
func (l *live) each(try func(i int) bool) (any bool) {
	failed := map[chance]int{} // the first task with that
	l.passed = make([]int, 0, len(l.waiting))
	for _, i := range l.waiting {
		t := &l.tasks[i]
		c := chance{keyOf(t), t.Gang, t.Queue, t.Priority}
		first, known := failed[c]
		switch {
		case known:
			l.why[i] = l.why[first]
		case l.Strict && len(l.passed) > 0:
		case try(i):
			any = true
			continue
		default:
			failed[c] = i
		}
		l.passed = append(l.passed, i)
	}
	l.waiting, l.passed = l.passed, nil
	return any
}

func (l *live) clock() time.Time { return clock(l.now) }

func (l *live) request(i int) place.Request {
	return RequestOf(&l.tasks[i], l.planned.ids[&l.tasks[i]])
}

// order sorts what waits as the product would.
func (l *live) order() {
	order := l.planned.Planner.Order()
	slices.SortStableFunc(l.waiting, func(x, y int) int { return order.Compare(l.turn(x), l.turn(y)) })
}

// turn is the place of a task that waits in the order.
func (l *live) turn(i int) quota.Turn {
	t := &l.tasks[i]
	since := t.ArriveSecond
	if l.bounded != nil {
		since = l.bounded.since[i] // an evicted task begins to wait again
	}
	return quota.Turn{ID: l.planned.ids[t], Queue: t.Queue, Priority: t.Priority, Since: clock(since), Later: l.laterOf(i)}
}

// laterOf is how much later a task counts as having come. As in the service it stays as it was
// when the task began to wait.
func (l *live) laterOf(i int) time.Duration {
	if !l.Shortest {
		return 0
	}
	if _, known := l.later[i]; !known {
		t := &l.tasks[i]
		l.later[i] = quota.Later(l.lives.lifetimes.Expected(seconds64(t.LimitSeconds), ""))
	}
	return l.later[i]
}

// preempt starts a task in the place of others; it returns the evicted.
func (l *live) preempt(i int) (evicted []int, ok bool, err error) {
	var plan place.Plan
	if l.bounded != nil {
		if plan, ok = l.bounded.makeRoom(i); !ok || !l.bounded.allows(len(plan.Victims)) {
			return nil, false, nil
		}
	} else if plan, err = l.planned.Planner.Preempt([]place.Request{l.request(i)}, l.clock()); err != nil || len(plan.Victims) == 0 {
		return nil, false, nil // no room: it waits
	}
	for _, v := range plan.Victims {
		j, err := strconv.Atoi(v.ID)
		if err != nil {
			return nil, false, fmt.Errorf("evict %q: %w", v.ID, err)
		}
		r := l.running[j]
		r.gone = true
		l.running[j] = nil
		l.bounded.leaves(r)
		l.planned.evict(&l.tasks[j])
		l.hold(&l.tasks[j], -1)
		l.result.Evictions++
		l.tell("evict", j, "")
		l.result.LostMilliS += int64(float64(l.tasks[j].Demand()) * (l.now - r.start))
		evicted = append(evicted, j)
	}
	l.bounded.evicts(evicted, i)
	l.why[i] = forNothing
	spot, err := l.planned.book(&l.tasks[i], plan.Placements[0].Usage, l.now)
	if err != nil {
		return nil, false, err
	}
	l.begin(i, spot)
	return evicted, true, nil
}

func (l *live) begin(i int, spot Spot) {
	t := &l.tasks[i]
	l.hold(t, 1)
	r := &running{task: i, start: l.now, end: l.now + t.RunSeconds, spot: spot}
	l.running[i] = r
	heap.Push(&l.ends, r)
	l.begun = l.now
	if l.planned != nil {
		l.tell("start", i, fmt.Sprint(" on ", l.planned.names[spot.Node], spot.GPUs))
	}
	l.bounded.starts(i, spot)
	if s := &l.result.Starts[i]; s.Spot.Node < 0 && (l.All || l.now <= l.end) {
		*s = Start{l.now, spot}
		l.result.Started++
		if l.outlook != nil {
			l.outlook.started(i)
		}
	}
}

// endHeap orders running tasks by end, then by task.
type endHeap []*running

func (h endHeap) Len() int { return len(h) }
func (h endHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].end, h[j].end), cmp.Compare(h[i].task, h[j].task)) < 0
}
func (h endHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *endHeap) Push(x any)   { *h = append(*h, x.(*running)) }
func (h *endHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}
