// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/turns"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Eviction is a choice of work that has to go so that a waiting alloc fits.
type Eviction struct {
	Job      nomad.JobKey // that waits
	Group    string
	Promises []Promise // to it
	Victims  []Victim  // lowest priority first
	// Reclaim is set when the room was borrowed from the queue of the one that
	// waits; otherwise its higher priority decides.
	Reclaim bool
	// Idle is set when all that goes does not use its GPUs, and its queues have that evicted.
	Idle bool
	// Moves is set when the victims are moved, and their new places promised to them.
	Moves bool
	// Text says who, for whom and why; each victim has its own, since who may
	// see one of them may not see the others.
	Text string

	// Room is where the one that waits goes; nil for a held group, which is let go once all
	// of its room is there, and its quota.
	Room *Room
}

// Promise is the room that is made for one alloc of a group, which is not in it yet.
type Promise struct {
	Job   nomad.JobKey
	Group string
	Usage place.Usage
}

// Assume books promised room, so that no other group is sent there, and the node that a
// move leaves stays closed to it until it has arrived.
func (p Promise) Assume(tx *state.Tx) {
	if tx.Cluster.Node(p.Usage.NodeID) == nil {
		return
	}
	tx.Assume(p.Job, p.Group, p.Usage, true)
	tx.Changed()
}

// Forget ends a promise that could not be kept.
func (p Promise) Forget(tx *state.Tx) {
	tx.Forget(p.Job, p.Group)
	tx.Changed()
}

// Victim is an alloc to evict.
type Victim struct {
	AllocID, Group, Node string
	To                   string // where a victim that is moved goes
	Job                  nomad.JobKey
	// Gang victims go with all of their gang, and wait as one.
	Gang bool
	// Quota is the queue whose quota a victim gives up: elsewhere it would take that back.
	// Empty where it goes for the room alone.
	Quota string
	// Hold has its group wait for its turn: Nomad would start it again at once in room that is kept for
	// what goes before it. Nil where it would not, or something else of the group runs.
	Hold     *admit.Hold
	Priority int
	Queue    string
	Text     string
}

// Room is the room that an eviction makes.
type Room struct {
	at      blocks.Placed
	victims []place.Usage
	parts   []blocks.Part
	// why says in a sentence where it goes, for what takes a seat; empty elsewhere.
	why string
	// rewrite is set when the group's device blocks are to be written for this
	// room, which may be of another form than they are.
	rewrite bool
}

// Node is where the room is.
func (r *Room) Node() string { return r.at.Node }

// Evict asks the core for the victims that let one alloc of a waiting group start.
// Nil means that no eviction would help. A group that is held for its turn gets room that is kept
// for none of those that go before it in the window.
func Evict(tx *state.Tx, key nomad.JobKey, g *record.Group, window *Window) *Eviction {
	a, rewrite, err := oneMore(tx, key, g)
	if err != nil || len(a.parts) == 0 {
		return nil
	}
	defer withoutStopping(tx)()
	room := makeRoom(a, g, rewrite, window)
	if room == nil {
		return nil
	}
	e := &Eviction{Job: key, Group: g.Ask.Group, Promises: []Promise{{key, g.Ask.Group, room.at.Usage}}}
	if OneByOne(g) {
		e.Room = room
	}
	if !payableAfter(tx, key, g, e.Promises, room.victims) {
		return nil
	}
	e.describe(a, room.victims, window)
	return e
}

// withoutStopping takes stopping allocs off the books: room that is being made
// already need not be made again. The result puts it back.
func withoutStopping(tx *state.Tx) func() {
	return tx.Without(tx.Cluster.Stopping())
}

// makeRoom tries the core's choices until one gives Nomad room for the group's
// device blocks, which only count when they are not to be rewritten. A group that waits for its turn or
// for room leaves the others theirs.
func makeRoom(a groupAsk, g *record.Group, rewrite bool, window *Window) (made *Room) {
	tx, room := a.tx, (*Room)(nil)
	if !heldForTurn(g) && !heldForRoom(g) {
		window = turns.NewWindow(tx.Planner(), tx.Planner().Snapshot(), tx.Now, 0)
	}
	window.MakeRoom(a.work(), func(except map[string]bool) (*place.Usage, string) {
		at, err := "", error(nil)
		switch room, at, err = preempt(tx, a.parts, except, tx.Config().Preemption.MinGap); {
		case err == nil:
			return &room.at.Usage, at
		case errors.Is(err, place.ErrNoRoom):
			return nil, at
		}
		return nil, ""
	}, func() (taken, over bool) {
		if len(room.victims) == 0 && OneByOne(g) && roomNow(tx, room.at.Node, g) {
			return false, true // it is about to be used
		}
		if rewrite || servesAfter(tx, room, g) {
			room.rewrite, room.parts, made = rewrite, a.parts, room
		}
		return made != nil, false
	})
	return made
}

// heldForTurn reports whether a group is held because others go before it.
func heldForTurn(g *record.Group) bool {
	return g.Decision.Hold != nil && g.Decision.Hold.Kind == view.WaitsForPriority
}

// OneByOne reports whether a group's allocs start each as there is room for it: they are not held, or
// for room alone. Those of a gang, and of a group held for another reason, are let go as one.
func OneByOne(g *record.Group) bool { return g.Decision.Hold == nil || heldForRoom(g) }

// heldForRoom reports whether a group whose allocs may start one by one is held for room.
func heldForRoom(g *record.Group) bool {
	return g.Decision.Hold != nil && g.Decision.Hold.Kind == view.WaitsForRoom && !g.Ask.Gang && !g.Ask.Child
}

// roomNow reports whether a node without stopping allocs has room for a group.
func roomNow(tx *state.Tx, node string, g *record.Group) bool {
	for a := range tx.Cluster.AllocsOn(node) {
		if a.Stopping {
			return false
		}
	}
	return tx.Capacity.Serves(node, blocks.NeedOf(tx, g), nil)
}

// preempt makes room for one alloc, all parts of it on one node. On failure it
// returns the node that did not do.
func preempt(tx *state.Tx, parts []blocks.Part, banned map[string]bool, gap int) (*Room, string, error) {
	rs := make([]place.Request, len(parts))
	for i := range parts {
		rs[i] = parts[i].Req
		rs[i].Priority -= gap - 1
	}
	if len(banned) > 0 {
		rs[0].Nodes = blocks.Cluster(tx).Without(rs[0].Nodes, banned)
	}
	plan, err := preemptSparing(tx, rs[:1], nil)
	if err != nil {
		return nil, "", err
	}
	node := plan.Placements[0].NodeID
	if len(rs) > 1 {
		for i := range rs {
			rs[i].Nodes = []string{node}
		}
		if plan, err = preemptSparing(tx, rs, nil); err != nil {
			return nil, node, err
		}
	}
	u := blocks.Placed{Node: node}
	for i := range plan.Placements {
		usage := plan.Placements[i].Usage
		usage.Priority = parts[i].Req.Priority
		u.Each, u.Score = append(u.Each, usage), u.Score+plan.Placements[i].Score
	}
	u.Usage = blocks.Merge(u.Each)
	return &Room{at: u, victims: plan.Victims}, node, nil
}

// servesAfter reports whether a node can serve a group's device blocks once
// the victims are gone.
func servesAfter(tx *state.Tx, room *Room, g *record.Group) bool {
	return tx.Capacity.Serves(room.at.Node, blocks.NeedOf(tx, g), func(u *place.Usage) bool {
		return slices.ContainsFunc(room.victims, func(v place.Usage) bool { return v.ID == u.ID })
	})
}

// describe fills in who goes, with the rest of their gangs, and why.
func (e *Eviction) describe(waiting groupAsk, victims []place.Usage, window *Window) {
	tx := waiting.tx
	victims = withGangs(tx, victims)
	slices.SortFunc(victims, func(x, y place.Usage) int {
		return cmp.Or(x.Priority-y.Priority, strings.Compare(x.ID, y.ID))
	})
	priority := waiting.parts[0].Req.Priority
	var who []string
	e.Idle = len(victims) > 0
	for _, u := range victims {
		a := tx.Cluster.Alloc(u.ID)
		e.Idle = e.Idle && u.Reclaim
		e.Victims = append(e.Victims, Victim{AllocID: u.ID, Job: a.Key(), Group: a.Group, Node: a.NodeID, Priority: u.Priority, Queue: u.Queue, Gang: u.Gang != ""})
		who = append(who, fmt.Sprintf("%s (priority %d, alloc %.8s)", a.Key(), u.Priority, u.ID))
		q := tx.Config().Queue(u.Queue)
		e.Reclaim = e.Reclaim || u.Priority+tx.Config().Preemption.MinGap > priority || q != nil && q.Protected
	}
	why := fmt.Sprintf("has priority %d and finds no room for %s", priority, waiting.ask)
	if seat := noSeat(waiting); seat != "" {
		why += "; " + seat
	}
	switch {
	case e.Idle:
		why = fmt.Sprintf("waits for %s, and the work evicted for it does not use its GPUs", waiting.ask)
	case e.Reclaim && waiting.queue != nil:
		why = fmt.Sprintf("takes back what was borrowed from queue %s, for %s", waiting.queue.Name, waiting.ask)
	}
	for i := range e.Victims {
		e.Victims[i].Hold = holdAfter(tx, e, &e.Victims[i], window)
		e.Victims[i].Text = fmt.Sprintf("%s must leave node %s: job %s %s", who[i], tx.Cluster.Node(e.Victims[i].Node).Plan.Name, waiting.key, why)
		if e.Idle {
			e.Victims[i].Text = fmt.Sprintf("%s must leave node %s: %s, and job %s waits for %s", who[i], tx.Cluster.Node(e.Victims[i].Node).Plan.Name, idleText(tx, e.Victims[i].AllocID), waiting.key, waiting.ask)
		}
		if tx.Cluster.StopsLate(e.Victims[i].AllocID) {
			e.Victims[i].Text += fmt.Sprintf("; it has no shutdown_delay, since it could take longer than %s to stop", state.LongestStop)
		}
		if n := tx.Queue.Repeats(e.Victims[i].Job).Allocs; n > 0 {
			e.Victims[i].Text += fmt.Sprintf("; Nomad runs %d of the job's allocs again with it, which have completed", n)
		}
	}
	e.Text = fmt.Sprintf("%s must go: job %s %s", strings.Join(who, ", "), waiting.key, why)
}

// idleText says for how long an alloc has not used its GPUs, and who wants it to go then.
func idleText(tx *state.Tx, id string) string {
	a := tx.Cluster.Alloc(id)
	since, _ := tx.Cluster.IdleSince(a)
	text := fmt.Sprintf("it has not used its GPUs since %s UTC", since.UTC().Format("2006-01-02 15:04"))
	if q := tx.Cluster.QueueOf(a.Key(), a.Group); q != nil {
		after, action := q.IdleRule()
		text += fmt.Sprintf(" (queue %s: idle_after %s, idle_action %q)", q.Name, after, action)
	}
	return text
}

// Nodes are those where room is made, in order.
func (e *Eviction) Nodes() []string {
	var nodes []string
	for _, p := range e.Promises {
		if p.Job == e.Job {
			nodes = append(nodes, p.Usage.NodeID)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// KeptOff are the nodes that a victim's group leaves out. Where the one that waits is held
// until all of its room is there, that is all of the room: the victim would start in another
// part of it.
func (e *Eviction) KeptOff(v *Victim) []string {
	nodes := []string{v.Node}
	if e.Room == nil && !e.Moves {
		nodes = append(nodes, e.Nodes()...)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// moveIn writes the device blocks of a group that waits as a whole for the room
// that is made for it.
func moveIn(tx *state.Tx, a *admit.Ask, g *record.Group, room *Room) {
	if !room.rewrite || g.Key != a.Key() {
		return
	}
	g.Decision.Tasks = blocks.Tasks(tx, a, room.parts, room.at)
	g.Covered = covered(room.parts)
	if a.Count == 1 {
		blocks.KeepClose(tx, g.Decision.Tasks, a, room.parts, []blocks.Placed{room.at})
	} else {
		unpin(g)
	}
	if room.why != "" {
		g.Shown.At, g.Shown.Outcome, g.Shown.Summary = tx.Now(), view.Placed, room.why
		g.Shown.Choices = []view.Choice{choice(tx, &room.at, nil)}
		g.Decision.Explanation = []string{room.why}
		tx.NoteDecision(g.Shown)
	}
}
