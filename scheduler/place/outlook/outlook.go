// SPDX-License-Identifier: MPL-2.0

package outlook

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/splitmix"
)

// Waiter is work that waits for room.
type Waiter struct {
	Request fit.Request
	// Count is how many tasks of it wait. Where they start Together, none starts
	// before there is room for all.
	Count    int
	Together bool
	Left     forecast.Remaining // how long one runs
}

// Outlook is when the first task of a waiter is likely to start, or all that start
// together: from now. One in twenty of the futures that were played is sooner than Soonest, and one
// in twenty later than Latest. It is not Known where the work in the way is not known to end.
type Outlook struct {
	Known                   bool
	Soonest, Likely, Latest time.Duration
}

// outlooks is how often the future is played, fewer where there is more to play: all
// plays together end at most mostEnds tasks, as long as there are leastOutlooks.
const outlooks, leastOutlooks, mostEnds = 24, 8, 200_000

// Foresight is what runs and what waits at a moment, to play what comes of it. It is a
// copy: the planner and its snapshot may go on meanwhile.
type Foresight struct {
	snap     *cluster.Snapshot
	waiting  []Waiter
	shapes   []int // by waiter, in distinct
	distinct []*fit.Shape
	rooms    []fit.Room
	ends     []ending // of what runs, by node
	open     []int    // rooms that fit some now
	kept     []int    // rooms, by waiter; -1: none
}

// ending is work that ends.
type ending struct {
	usage *cluster.Usage
	room  int
	left  forecast.Remaining
	luck  uint64 // which of the chances a play begins with
}

// Foresee looks at running work, where left says how much longer it runs, and at waiting work, in
// the order in which it is tried.
func Foresee(s *cluster.Snapshot, waiting []Waiter, left func(*cluster.Usage) forecast.Remaining) *Foresight {
	f := &Foresight{snap: s, waiting: waiting}
	alike := map[fit.ShapeKey]int{}
	for i := range waiting {
		key := fit.KeyOf(&waiting[i].Request)
		at, known := alike[key]
		if !known {
			at = len(f.distinct)
			alike[key] = at
			sh := fit.NewShape(&waiting[i].Request, s)
			if last := int32(len(s.Kinds)) - 1; last >= 0 {
				sh.Need(s, last) // all of them: there may be more kinds by the time that it is played
			}
			f.distinct = append(f.distinct, sh)
		}
		f.shapes = append(f.shapes, at)
	}
	for _, id := range s.NodeIDs() {
		n := s.Nodes[id]
		for _, u := range n.Holders {
			if l := left(u); l.Known() {
				luck := splitmix.Source(len(f.ends))
				f.ends = append(f.ends, ending{u, len(f.rooms), l, luck.Next()})
			}
		}
		f.rooms = append(f.rooms, fit.NewRoom(n))
	}
	return f
}

// Outlook estimates when waiting work starts. It plays running work to its end (work not known to
// end stays) and starts waiting work as room comes. Later arrivals may be ahead of
// what comes earlier, but not on the node that is kept for that one: the one where it
// is expected to fit first.
func (f *Foresight) Outlook() []Outlook {
	for i := range f.rooms {
		if slices.ContainsFunc(f.distinct, func(sh *fit.Shape) bool { return f.rooms[i].Fits(f.snap, sh) != nil }) {
			f.open = append(f.open, i)
		}
	}
	f.keep()
	plays := max(leastOutlooks, min(outlooks, mostEnds/max(1, len(f.ends))))
	starts := make([][]time.Duration, len(f.waiting))
	for n := range plays {
		for i, at := range f.play(n, plays) {
			starts[i] = append(starts[i], at)
		}
	}
	out := make([]Outlook, len(f.waiting))
	for i, s := range starts {
		slices.Sort(s)
		at := func(part int) time.Duration { return s[len(s)*part/20] }
		if at(19) < never {
			out[i] = Outlook{true, at(1), at(10), at(19)}
		}
	}
	return out
}

// never is the start of what never starts.
const never = time.Duration(1<<63 - 1)

// keep finds for each waiter the node where it is expected to fit first, of those that
// are not kept for an earlier one.
func (f *Foresight) keep() {
	type option struct {
		room int
		at   time.Duration
	}
	options := make([][]option, len(f.distinct))
	for from := 0; from < len(f.ends); {
		to := from
		for to < len(f.ends) && f.ends[to].room == f.ends[from].room {
			to++
		}
		ends := slices.Clone(f.ends[from:to])
		slices.SortStableFunc(ends, func(a, b ending) int { return cmp.Compare(a.left.At(0.5), b.left.At(0.5)) })
		for i, sh := range f.distinct {
			if at := f.fitsAfter(sh, ends); at < never {
				options[i] = append(options[i], option{ends[0].room, at})
			}
		}
		from = to
	}
	for i := range options {
		slices.SortStableFunc(options[i], func(a, b option) int { return cmp.Compare(a.at, b.at) })
	}
	kept := map[int]bool{}
	for _, sh := range f.shapes {
		for len(options[sh]) > 0 && kept[options[sh][0].room] {
			options[sh] = options[sh][1:]
		}
		if len(options[sh]) == 0 {
			f.kept = append(f.kept, -1)
			continue
		}
		f.kept = append(f.kept, options[sh][0].room)
		kept[options[sh][0].room] = true
	}
}

// fitsAfter is when a shape is expected to fit a node whose work ends in this order.
func (f *Foresight) fitsAfter(sh *fit.Shape, ends []ending) time.Duration {
	r := f.rooms[ends[0].room].Copy()
	for _, e := range ends {
		r.Add(e.usage, 1)
		if r.Fits(f.snap, sh) != nil {
			return e.left.At(0.5)
		}
	}
	return never
}

// play is when each waiter starts in one of some plays. In all of them together, every
// task that runs ends once with each of as many chances.
func (f *Foresight) play(number, plays int) []time.Duration {
	g := game{Foresight: f, number: number, plays: plays, rooms: make([]*fit.Room, len(f.rooms)), missing: make([]int, len(f.waiting)), pending: make([]int, len(f.distinct))}
	for i := range f.waiting {
		g.starts, g.missing[i] = append(g.starts, never), max(1, f.waiting[i].Count)
		g.pending[f.shapes[i]]++
	}
	for _, e := range f.ends {
		g.ends = append(g.ends, endAt{e.left.At(g.chance(e.luck)), e.usage, e.room})
	}
	slices.SortFunc(g.ends, compareEnds)
	for _, i := range f.open {
		g.start(i, 0)
	}
	for g.started < len(f.waiting) {
		e, ok := g.next()
		if !ok {
			break
		}
		g.roomOn(e.room).Add(e.usage, 1)
		g.start(e.room, e.at)
	}
	return g.starts
}

// game is one play.
type game struct {
	*Foresight
	number, plays int
	rooms         []*fit.Room // as far as something changed
	ends          []endAt     // of what ran, in order
	begun         endQueue
	starts        []time.Duration
	missing       []int // tasks, by waiter
	pending       []int // waiters, by shape
	started       int   // waiters
}

// chance is one of as many chances as there are plays: each play's another one.
func (g *game) chance(luck uint64) float64 {
	return (float64((luck+uint64(g.number))%uint64(g.plays)) + 0.5) / float64(g.plays)
}

// next is the work that ends next.
func (g *game) next() (e endAt, ok bool) {
	switch {
	case len(g.begun) > 0 && (len(g.ends) == 0 || compareEnds(g.begun[0], g.ends[0]) < 0):
		return heap.Pop(&g.begun).(endAt), true
	case len(g.ends) > 0:
		e, g.ends = g.ends[0], g.ends[1:]
		return e, true
	}
	return e, false
}

// roomOn is what a node has free in this game, by its place in the foresight.
func (g *game) roomOn(i int) *fit.Room {
	if g.rooms[i] == nil {
		r := g.Foresight.rooms[i].Copy()
		g.rooms[i] = &r
	}
	return g.rooms[i]
}

// start lets what fits a node start there, in order.
func (g *game) start(at int, now time.Duration) {
	r := g.roomOn(at)
	fits := func(sh int) *cluster.Pool { return r.Fits(g.snap, g.distinct[sh]) }
	some := false
	for sh, waiters := range g.pending {
		some = some || waiters > 0 && fits(sh) != nil
	}
	for i := 0; some && i < len(g.waiting); i++ {
		for g.missing[i] > 0 && !g.keptBefore(i, at) {
			b := fits(g.shapes[i])
			if b == nil {
				break
			}
			u := r.Take(g.snap, g.distinct[g.shapes[i]], b)
			if w := &g.waiting[i]; w.Left.Known() {
				heap.Push(&g.begun, endAt{now + w.Left.At(g.chance(uint64(i))), u, at})
			}
			g.countStart(i, now)
		}
	}
}

// countStart notes that a task of a waiter starts.
func (g *game) countStart(i int, now time.Duration) {
	if g.missing[i]--; g.missing[i] == 0 {
		g.pending[g.shapes[i]]--
	}
	if g.starts[i] == never && (g.missing[i] == 0 || !g.waiting[i].Together) {
		g.starts[i] = now
		g.started++
	}
}

// keptBefore reports whether a node is kept for an earlier waiter that still waits.
func (g *game) keptBefore(i, room int) bool {
	for j := range i {
		if g.kept[j] == room && g.starts[j] == never {
			return true
		}
	}
	return false
}

// endAt is when work ends.
type endAt struct {
	at    time.Duration
	usage *cluster.Usage
	room  int
}

func compareEnds(a, b endAt) int {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.room, b.room), cmp.Compare(a.usage.ID, b.usage.ID))
}

type endQueue []endAt

func (q endQueue) Len() int           { return len(q) }
func (q endQueue) Less(i, j int) bool { return compareEnds(q[i], q[j]) < 0 }
func (q endQueue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *endQueue) Push(x any)        { *q = append(*q, x.(endAt)) }
func (q *endQueue) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}
