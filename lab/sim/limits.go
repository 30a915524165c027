// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
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
	window  *window
	refuses func(*Task) bool // what no node could ever hold
	jobs    turns.Evictions[int]
	queues  turns.Evictions[string]
	rate    *rate.Limiter // of evictions
}

func newBounded(l *live, limits Limits, nodes []Node) *bounded {
	return &bounded{
		watch: newWatch(l), Limits: limits, window: newWindow(l, nodes), refuses: l.impossible(),
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
	b.window.renew(b.l.waiting, b.Kept)
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
	b.window.starts(i, s)
}

func (b *bounded) ends(r *running) {
	if b == nil {
		return
	}
	b.window.leaves(r.task, r.spot)
}

// leaves is told of each task that is taken off its node, and evicts of all of them that had
// to go for another one.
func (b *bounded) leaves(r *running) {
	if b != nil {
		b.window.leaves(r.task, r.spot)
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

// kept says for whom room is kept.
type kept int

const (
	forNone  kept = iota
	forTurn       // for what goes first
	forLarge      // for large tasks that come often
)

// keptFor is for whom the room of a usage is kept from a task.
func (b *bounded) keptFor(i int, r *place.Request, u *place.Usage) kept {
	node := b.l.planned.at[u.NodeID]
	switch {
	case b.window.takes(i, node, spotOf(node, u).GPUs) != nil:
		return forTurn
	case b.l.planned.keeps(&b.l.tasks[i], r, u, b.l.now):
		return forLarge
	}
	return forNone
}

// startsBeside starts a task where there is room that is kept for no other; held is for whom the
// first room is kept where there is other room only.
func (b *bounded) startsBeside(i int) (ok bool, held kept, err error) {
	r, p := b.l.request(i), b.l.planned
	without := map[int]bool{}
	for {
		pl, err := p.Planner.Place(&r)
		if err != nil {
			return false, held, nil
		}
		whom := b.keptFor(i, &r, &pl.Usage)
		if whom == forNone {
			spot, err := p.book(&b.l.tasks[i], pl.Usage, b.l.now)
			if err == nil {
				b.l.begin(i, spot)
			}
			return err == nil, forNone, err
		}
		held, without[p.at[pl.NodeID]] = cmp.Or(held, whom), true
		if r.Nodes = b.window.others(i, without); len(r.Nodes) == 0 {
			return false, held, nil
		}
	}
}

// preempts plans evictions for a task that is held for its turn, which leave what goes first the room
// that is kept for it: on other nodes, or in the place of what its queue lent, from where it gives way
// to what goes first.
func (b *bounded) preempts(i int) (place.Plan, error) {
	r, p, without := b.l.request(i), b.l.planned, map[int]bool{}
	defer b.window.bookFree(i)()
	for {
		plan, err := p.Planner.Preempt([]place.Request{r}, b.l.clock())
		if err != nil {
			return plan, err
		}
		u := &plan.Placements[0].Usage
		node := p.at[u.NodeID]
		first := b.window.takes(i, node, spotOf(node, u).GPUs)
		if first == nil || p.Planner.Owns(&r) && p.Planner.Yields(&r, &first.request) {
			return plan, nil
		}
		if without[node] = true; len(without) == len(b.window.names) {
			return place.Plan{}, place.ErrNoRoom
		}
		r.Nodes = b.window.except(without)
	}
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
