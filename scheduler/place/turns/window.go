// SPDX-License-Identifier: MPL-2.0

package turns

import (
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Work is work that waits or asks for room.
type Work struct {
	Namespace, Job string // the groups of a job do not wait for each other

	Turn quota.Turn
	Gang bool // it starts together with other work, and waits for enough as it is
	// Request is what one alloc asks for; nil where it asks for no GPU.
	Request func() *place.Request
	// Runs is how long it is expected to run with a usage; only work that asks for room needs it.
	Runs func(*place.Usage) forecast.Remaining
}

// Room is a node, as work sees it that waits for room there.
type Room interface {
	// Serves reports whether the work fits once the usages that without selects have gone.
	Serves(without func(*place.Usage) bool) bool
	// Leaves selects the usages that end before the work has to give up the node.
	Leaves(*place.Usage) bool
	// Left is how much longer such a usage is expected to be there.
	Left(*place.Usage) forecast.Remaining
}

// Kept is work that waits, with the node that is kept for it; empty where it cannot get any.
type Kept struct {
	Work
	Node    string
	Room    Room
	request *place.Request
	asked   bool
	soonest *time.Duration
}

// Window is the work whose turn is next, each with the node that is kept for it. What comes after it
// takes no room there.
type Window struct {
	Planner  *place.Planner
	Snapshot *place.Snapshot
	Now      func() time.Time
	Most     int // nodes that are kept; see [MostKept]
	Taken    map[string]bool
	kept     []*Kept
}

// NewWindow keeps no node yet, and most at most.
func NewWindow(p *place.Planner, s *place.Snapshot, now func() time.Time, most int) *Window {
	return &Window{Planner: p, Snapshot: s, Now: now, Most: most, Taken: map[string]bool{}}
}

// Left is how many nodes may be kept besides.
func (w *Window) Left() int { return w.Most - len(w.kept) }

// Keep keeps a node for the next work in the order.
func (w *Window) Keep(k Kept) {
	w.Taken[k.Node] = true
	w.kept = append(w.kept, &k)
}

// asks is what one alloc of the work asks for, looked up once.
func (k *Kept) asks() *place.Request {
	if !k.asked {
		k.request, k.asked = k.Request(), true
	}
	return k.request
}

// Before yields the work that goes before other work which asks for room, and has a node kept for it: by
// the order, but not where it would have to give the room back to the other one, as borrowed room
// goes back to guaranteed work.
func (w *Window) Before(of *Work) func(yield func(*Kept) bool) {
	return func(yield func(*Kept) bool) {
		for _, k := range w.kept {
			if k.Node != "" && w.goesBefore(k, of) && !yield(k) {
				return
			}
		}
	}
}

func (w *Window) goesBefore(k *Kept, of *Work) bool {
	if k.Job == of.Job && k.Namespace == of.Namespace || !GoesFirst(w.Planner.Order(), w.Now(), k.Turn, of.Turn) {
		return false
	}
	if k.Turn.Queue == of.Turn.Queue { // of one queue nothing is taken back
		return true
	}
	one, other := k.asks(), of.Request()
	return one == nil || other == nil || !w.Planner.Yields(one, other)
}

// KeptFor is the work that a usage would take its room from; nil for none.
func (w *Window) KeptFor(of *Work, u *place.Usage) *Kept {
	for _, k := range w.kept {
		if k.Node == u.NodeID && w.goesBefore(k, of) && w.takes(k, u) && !EndsBefore(of.Runs(u), k.start(w.Snapshot)) {
			return k
		}
	}
	return nil
}

// takes reports whether a usage would leave no room for work that waits, once all that leaves has gone.
func (w *Window) takes(k *Kept, u *place.Usage) bool {
	trial := *u
	trial.ID, trial.Pinned = "trial:"+u.ID, true
	if w.Snapshot.Observe(trial) != nil {
		return false
	}
	defer w.Snapshot.MustRelease(trial.ID)
	return !k.Room.Serves(k.leaves)
}

// leaves selects the usages that are gone when the work starts.
func (k *Kept) leaves(u *place.Usage) bool {
	return strings.HasPrefix(u.ID, freeRoom) || k.Room.Leaves(u)
}

// start is when the work could start on its node, if all that is in its way ended early. Work that is
// not known to end may be gone at any moment.
func (k *Kept) start(s *place.Snapshot) time.Duration {
	if k.soonest != nil {
		return *k.soonest
	}
	var ends []Ending
	for _, u := range s.UsagesOn(k.Node) {
		if k.leaves(&u) {
			ends = append(ends, Ending{ID: u.ID, At: MayBeGone(k.Room.Left(&u))})
		}
	}
	start := Soonest(ends, func(gone map[string]bool) bool {
		return k.Room.Serves(func(u *place.Usage) bool { return gone[u.ID] })
	})
	k.soonest = &start
	return start
}

// Held is why work does not start although there is room: it is kept for other work, or for large tasks
// that come often. It is zero where nothing keeps it.
type Held struct {
	For      *Kept
	Headroom place.Headroom
}

// holds is for whom the room of a usage is kept.
func (w *Window) holds(of *Work, u *place.Usage) (h Held) {
	if h.For = w.KeptFor(of, u); h.For == nil && !of.Gang {
		h.Headroom, _ = w.Planner.Keeps(of.Request(), u, w.Now().Sub(of.Turn.Since))
	}
	return h
}

// Start finds room for work that is kept for no other: find looks on all nodes but for some. Where there is
// only room that is kept, it returns for whom the first was.
func Start[P any](w *Window, of *Work, find func(without map[string]bool) (P, *place.Usage, error)) (p P, held Held, err error) {
	without := map[string]bool{}
	for {
		p, u, err := find(without)
		if err != nil {
			return p, held, err
		}
		why := w.holds(of, u)
		if why == (Held{}) {
			return p, why, nil
		}
		if held == (Held{}) {
			held = why
		}
		without[u.NodeID] = true
	}
}

// tries is how many nodes are tried for room that evictions make, besides those that are kept.
const tries = 8

// MakeRoom looks for room that evictions make for work, and that leaves the work before it the room kept
// for it. Plan plans on all nodes but for some, and says where; without a usage that node is of no use, and
// without a node no other is. Take reports whether the plan is taken, or the search is over without one.
func (w *Window) MakeRoom(of *Work, plan func(without map[string]bool) (u *place.Usage, node string), take func() (taken, over bool)) bool {
	defer w.bookFree(of)()
	without := map[string]bool{}
	for range tries + len(w.kept) {
		u, node := plan(without)
		if node == "" {
			return false
		}
		if u != nil && w.spares(of, u) {
			if taken, over := take(); taken || over {
				return taken
			}
		}
		without[node] = true
	}
	return false
}

// spares reports whether room that is made for work leaves the others the room kept for them: none of
// them goes before it there; or it takes back its queue's own, beside the room booked as free,
// and has to give way to them in its turn.
func (w *Window) spares(of *Work, u *place.Usage) bool {
	first, own := w.KeptFor(of, u), of.Request()
	if first == nil || !w.Planner.Owns(own) {
		return first == nil
	}
	one := first.asks()
	return one != nil && w.Planner.Yields(own, one)
}

// Free room on kept nodes is booked as work with such an ID, where room is looked for that
// leaves it to the others.
const freeRoom = "free:"

// bookFree books the free room on the nodes that are kept for what goes before work. The result frees it
// again.
func (w *Window) bookFree(of *Work) (restore func()) {
	var ids []string
	for k := range w.Before(of) {
		u := w.Snapshot.Rest(k.Node)
		u.ID, u.Pinned = freeRoom+k.Node, true
		if len(u.Takes) > 0 && w.Snapshot.Observe(u) == nil {
			ids = append(ids, u.ID)
		}
	}
	return func() {
		for _, id := range ids {
			w.Snapshot.MustRelease(id)
		}
	}
}
