// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"errors"
	"time"

	"golang.org/x/time/rate"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/turns"
)

// Limits are what the service bounds waits and evictions by, for [LiveOptions].
type Limits struct {
	Kept         int // most nodes that are kept for what waits
	MaxPerJob    int // evictions in an hour
	MaxPerQueue  int
	MaxPerMinute int // of all work; 1 or more
}

// DefaultLimits are those of the service.
func DefaultLimits() Limits {
	return Limits{Kept: turns.MostKept, MaxPerJob: 4, MaxPerQueue: 60, MaxPerMinute: 30}
}

// bounded is a replay that keeps to limits, and measures their effect. Nil bounds nothing.
type bounded struct {
	*watch
	Limits
	sight   *sight
	refuses func(*Task) bool // what no node could ever hold
	jobs    turns.Evictions[int]
	queues  turns.Evictions[string]
	rate    *rate.Limiter // of evictions
}

func newBounded(l *live, limits Limits, nodes []Node) *bounded {
	return &bounded{
		watch: newWatch(l), Limits: limits, sight: newSight(l, nodes), refuses: l.impossible(),
		jobs: turns.NewEvictions[int](), queues: turns.NewEvictions[string](),
		rate: rate.NewLimiter(rate.Every(time.Minute/time.Duration(limits.MaxPerMinute)), limits.MaxPerMinute),
	}
}

// passes is told that time goes by.
func (b *bounded) passes(to float64) {
	if b != nil {
		b.watch.passes(to)
	}
}

// arrives has a task wait; false: the service would refuse it.
func (b *bounded) arrives(i int) bool {
	if b == nil {
		return true
	}
	if b.refuses(&b.l.tasks[i]) {
		return false
	}
	b.waits(i)
	return true
}

// look updates the kept nodes and the spared work, before waiting tasks are tried.
func (b *bounded) look() {
	if b == nil {
		return
	}
	if len(b.jobs.Expire(b.l.clock()))+len(b.queues.Expire(b.l.clock())) > 0 {
		b.markAll()
	}
	b.sight.window = nil
}

// ask notes who is owed what, after what waits was tried.
func (b *bounded) ask() {
	if b == nil {
		return
	}
	late := map[chance]bool{}
	for _, i := range b.l.waiting {
		b.asksFor(i, late)
	}
}

// starts is told of each task that starts, and ends of every task that has run to its end.
func (b *bounded) starts(i int, s Spot) {
	if b == nil {
		return
	}
	b.begins(i)
	b.mark(i)
	b.sight.move(i, s, 1)
}

func (b *bounded) ends(r *running) {
	if b == nil {
		return
	}
	b.sight.move(r.task, r.spot, -1)
}

// leaves is told of each task that is taken off its node, and evicts of all of them that had
// to go for another one.
func (b *bounded) leaves(r *running) {
	if b != nil {
		b.sight.move(r.task, r.spot, -1)
	}
}

func (b *bounded) evicts(victims []int, by int) {
	if b == nil || len(victims) == 0 {
		return
	}
	for _, j := range victims {
		queue := b.l.tasks[j].Queue
		own := queue != "" && queue == b.l.tasks[by].Queue
		b.jobs.Note(j, b.l.clock(), own)
		b.queues.Note(queue, b.l.clock(), own)
	}
	b.went(victims, by)
	b.markAll()
}

// allows counts victims against the rate of all evictions.
func (b *bounded) allows(victims int) bool {
	return b == nil || b.rate.AllowN(b.l.clock(), min(victims, b.MaxPerMinute))
}

// start starts a task where there is room that is kept for no other; else it waits, and why says for which reason.
func (b *bounded) start(i int) (ok bool, why hold) {
	p, r := b.l.planned, b.l.request(i)
	pl, held, err := turns.Start(b.sight.turns(), b.l.asker(i), func(except map[string]bool) (place.Placement, *place.Usage, error) {
		r.Except = except
		pl, err := p.Planner.Place(&r)
		return pl, &pl.Usage, err
	})
	switch {
	case held.For != nil:
		return false, forTurn
	case held.Headroom.GPUs > 0:
		return false, forHeadroom
	case errors.Is(err, place.ErrQuota):
		return false, forQuota
	case err != nil:
		return false, forRoom
	}
	spot, err := p.book(&b.l.tasks[i], pl.Usage, b.l.now)
	if err != nil {
		return false, forRoom
	}
	b.l.begin(i, spot)
	return true, forNothing
}

// makeRoom plans evictions for a task, which leave what goes first the room that is kept for it.
func (b *bounded) makeRoom(i int) (plan place.Plan, ok bool) {
	r, p, window := b.l.request(i), b.l.planned, b.sight.turns()
	if b.l.why[i] != forTurn && b.l.why[i] != forRoom {
		window = turns.NewWindow(p.Planner, p.Snapshot, b.l.clock, 0)
	}
	ok = window.MakeRoom(b.l.asker(i), func(except map[string]bool) (*place.Usage, string) {
		if r.Nodes = b.sight.without(except); len(except) > 0 && len(r.Nodes) == 0 {
			return nil, ""
		}
		var err error
		if plan, err = p.Planner.Preempt([]place.Request{r}, b.l.clock()); err != nil {
			return nil, ""
		}
		return &plan.Placements[0].Usage, plan.Placements[0].NodeID
	}, func() (taken, over bool) { return len(plan.Victims) > 0, true })
	return plan, ok
}

// spares reports whether a task bears no other eviction for a queue that is not its own,
// or with own for its own.
func (b *bounded) spares(i int, own bool) bool {
	queue := b.l.tasks[i].Queue
	return !b.jobs.Left(i, b.MaxPerJob, own) || queue != "" && !b.queues.Left(queue, b.MaxPerQueue, own)
}

// mark books whether a task that runs may be evicted.
func (b *bounded) mark(i int) {
	r, pinned, spent := b.l.running[i], b.spares(i, false), b.spares(i, true)
	if r.pinned == pinned && r.spent == spent {
		return
	}
	r.pinned, r.spent = pinned, spent
	b.l.planned.mark(&b.l.tasks[i], pinned, spent)
}

func (b *bounded) markAll() {
	for i, r := range b.l.running {
		if r != nil {
			b.mark(i)
		}
	}
}

// sum is the measurements; nil without limits.
func (b *bounded) sum() *Bounds {
	if b == nil {
		return nil
	}
	return b.watch.sum()
}
