package decide

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Eviction is a choice of work that has to go so that a waiting alloc fits.
type Eviction struct {
	Job      nomad.JobKey // that waits
	Group    string
	Promises []Promise // to it
	Victims  []Victim  // lowest priority first
	// Rivals wait as well, and Nomad would give them the room first.
	Rivals []Rival
	// Reclaim is set when the room was borrowed from the queue of the one that
	// waits; otherwise its higher priority decides.
	Reclaim bool
	// Text says who, for whom and why; each victim has its own, since who may
	// see one of them may not see the others.
	Text string

	room *made
}

// Rival is a waiting group to keep off a node where room is made for another.
type Rival struct {
	Job         nomad.JobKey
	Group, Node string
}

// Victim is an alloc to evict.
type Victim struct {
	AllocID, Group, Node string
	Job                  nomad.JobKey
	// Gang victims go with all of their gang, and wait as one.
	Gang bool
	// Quota victims give up quota, not only room: elsewhere they would take it back.
	Quota    bool
	Priority int
	Queue    string
	Text     string
}

// made is the room that an eviction makes.
type made struct {
	unit
	victims []place.Usage
	parts   []part
	// anew is set when the group's device blocks are to be written for this
	// room, which may be of another form than they are.
	anew bool
}

// evict asks the core for the victims that let one alloc of a waiting group
// start. Nil means that no eviction would help.
func (b *Book) evict(key nomad.JobKey, g *GroupRecord) *Eviction {
	c := &choosing{book: b, key: key, ask: &g.Ask}
	var err error
	if c.queue, err = b.config.QueueFor(g.Ask.Namespace, g.Ask.Queue); err != nil {
		return nil
	}
	if c.parts, err = b.parts(&g.Ask, c.queue); err != nil || len(c.parts) == 0 {
		return nil
	}
	anew := c.waits(g)
	if !anew {
		c.asBefore(g)
		c.keepTo(g.Decision.Tasks)
	}
	c.avoid(g.Excluded)
	defer b.withoutStopping()()
	room := c.makeRoom(g, anew)
	if room == nil {
		return nil
	}
	return b.eviction(c, room)
}

// withoutStopping takes what is about to end off the books: room that is being
// made already need not be made again. The result puts it back.
func (b *Book) withoutStopping() func() {
	var stopping []*nomad.Alloc
	for _, a := range b.allocs {
		if _, booked := b.snap.Usage(a.ID); booked && a.Stopping {
			stopping = append(stopping, a)
			b.unbook(a.ID)
		}
	}
	return func() {
		for _, a := range stopping {
			b.book(b.usageOf(a))
		}
	}
}

// makeRoom tries the core's choices until one gives Nomad room for the group's
// device blocks, which only count when they are not to be written anew.
func (c *choosing) makeRoom(g *GroupRecord, anew bool) *made {
	b := c.book
	banned := map[string]bool{}
	for range tries {
		room, at, err := b.preempt(c.parts, banned, b.config.Preemption.MinGap)
		switch {
		case err == nil && len(room.victims) == 0 && b.roomNow(room.node, g):
			return nil // Nomad is about to use it
		case err == nil && (anew || b.servesAfter(room, g)):
			room.anew, room.parts = anew, c.parts
			return room
		case at == "" || err != nil && !errors.Is(err, place.ErrNoRoom):
			return nil
		}
		banned[at] = true
	}
	return nil
}

// roomNow reports whether a node has room for a group beside what is stopping.
func (b *Book) roomNow(node string, g *GroupRecord) bool {
	for _, a := range b.allocs {
		if a.NodeID == node && a.Stopping {
			return false
		}
	}
	return b.snap.Serves(node, &b.writtenAs(g).alloc, nil)
}

// preempt makes room for one alloc, all parts of it on one node. On failure it
// returns the node that did not do.
func (b *Book) preempt(parts []part, banned map[string]bool, gap int) (*made, string, error) {
	rs := make([]place.Request, len(parts))
	for i := range parts {
		rs[i] = parts[i].req
		rs[i].Priority -= gap - 1
	}
	if len(banned) > 0 {
		rs[0].Nodes = b.board(false).without(rs[0].Nodes, banned)
	}
	plan, err := b.preemptSparing(rs[:1])
	if err != nil {
		return nil, "", err
	}
	node := plan.Placements[0].NodeID
	if len(rs) > 1 {
		for i := range rs {
			rs[i].Nodes = []string{node}
		}
		if plan, err = b.preemptSparing(rs); err != nil {
			return nil, node, err
		}
	}
	u := unit{node: node}
	for i := range plan.Placements {
		usage := plan.Placements[i].Usage
		usage.Priority = parts[i].req.Priority
		u.parts, u.score = append(u.parts, usage), u.score+plan.Placements[i].Score
	}
	u.usage = merge(u.parts)
	return &made{unit: u, victims: plan.Victims}, node, nil
}

// servesAfter reports whether a node can serve a group's device blocks once
// the victims are gone.
func (b *Book) servesAfter(room *made, g *GroupRecord) bool {
	return b.snap.Serves(room.node, &b.writtenAs(g).alloc, func(u *place.Usage) bool {
		return slices.ContainsFunc(room.victims, func(v place.Usage) bool { return v.ID == u.ID })
	})
}

// stoppable reports whether an alloc may be stopped at all: work with GPUs that
// does not end already, and does not come back at once as that of system jobs
// does.
func (b *Book) stoppable(a *nomad.Alloc) bool {
	j := b.jobs[a.Key()]
	return !a.Stopping && len(a.Devices) > 0 && j != nil && (j.Type == "service" || j.Type == "batch")
}

// evictable reports whether an alloc may have to make room for another. While
// canaries of its group wait for promotion, none does: the change that keeps the
// group off its node would end the deployment, and with it the choice whether the
// new version is to replace the old one.
func (b *Book) evictable(a *nomad.Alloc) bool {
	if !b.stoppable(a) || b.spent(a.Key()) {
		return false
	}
	for _, sibling := range b.byJob[a.Key()] {
		if sibling.Canary && sibling.Group == a.Group && !sibling.Stopping {
			return false
		}
	}
	return true
}

func (b *Book) eviction(c *choosing, room *made) *Eviction {
	e := &Eviction{Job: c.key, Group: c.ask.Group, Promises: []Promise{{c.key, c.ask.Group, room.usage}}, room: room}
	b.describe(e, c, room.victims)
	return e
}

// describe fills in who goes, with the rest of their gangs, and why.
func (b *Book) describe(e *Eviction, c *choosing, victims []place.Usage) {
	victims = b.withGangs(victims)
	slices.SortFunc(victims, func(x, y place.Usage) int {
		return cmp.Or(x.Priority-y.Priority, strings.Compare(x.ID, y.ID))
	})
	priority := c.parts[0].req.Priority
	var who []string
	for _, u := range victims {
		a := b.allocs[u.ID]
		e.Victims = append(e.Victims, Victim{AllocID: u.ID, Job: a.Key(), Group: a.Group, Node: a.NodeID, Priority: u.Priority, Queue: u.Queue, Gang: u.Gang != ""})
		who = append(who, fmt.Sprintf("%s (priority %d, alloc %.8s)", a.Key(), u.Priority, u.ID))
		q := b.config.Queue(u.Queue)
		e.Reclaim = e.Reclaim || u.Priority+b.config.Preemption.MinGap > priority || q != nil && q.Protected
	}
	why := fmt.Sprintf("has priority %d and finds no room for %s", priority, c.ask)
	if e.Reclaim && c.queue != nil {
		why = fmt.Sprintf("takes back what was borrowed from queue %s, for %s", c.queue.Name, c.ask)
	}
	for i := range e.Victims {
		e.Victims[i].Text = fmt.Sprintf("%s must leave node %s: job %s %s", who[i], b.nodes[e.Victims[i].Node].Plan.Name, c.key, why)
	}
	e.Rivals = b.rivals(e)
	e.Text = fmt.Sprintf("%s must go: job %s %s", strings.Join(who, ", "), c.key, why)
}

// rivals are the groups that wait for room too and would take what is made: Nomad
// goes by the priority of jobs alone, and knows of no queue that takes back its own.
func (b *Book) rivals(e *Eviction) []Rival {
	var list []Rival
	goes := func(u *place.Usage) bool {
		return slices.ContainsFunc(e.Victims, func(v Victim) bool { return v.AllocID == u.ID })
	}
	for _, key := range slices.SortedFunc(maps.Keys(b.blocked), compareKeys) {
		j := b.jobs[key]
		if j == nil || key == e.Job || j.Stopped || j.Priority < b.priorityOf(e.Job) {
			continue
		}
		for i := range j.Groups {
			g := &j.Groups[i]
			w := b.writtenFor(key, g)
			if b.blocked[key].Missing[g.Name] == 0 || w == nil {
				continue
			}
			for _, p := range e.Promises {
				r := Rival{key, g.Name, p.usage.NodeID}
				if b.servesNow(r.Node, w, goes) && !slices.Contains(list, r) {
					list = append(list, r)
				}
			}
		}
	}
	return list
}

// writtenFor is a registered group with its device blocks; nil where it waits for
// something else than room.
func (b *Book) writtenFor(key nomad.JobKey, g *nomad.Group) *written {
	if r := b.records[key]; r != nil {
		if known, found := r.Groups[g.Name]; found {
			if known.Decision.Hold != nil {
				return nil
			}
			return b.writtenAs(&known)
		}
	}
	w := &written{}
	for _, t := range g.Tasks {
		for _, d := range t.Devices {
			w.alloc.Devices = append(w.alloc.Devices, place.Block{Device: d.Name, Count: d.Count})
		}
	}
	if len(w.alloc.Devices) == 0 {
		return nil
	}
	return w
}

// moveIn writes the device blocks of a group that waits as a whole for the room
// that is made for it.
func (b *Book) moveIn(a *admit.Ask, g *GroupRecord, room *made) {
	if !room.anew || g.Key != a.Key() {
		return
	}
	g.Decision.Tasks = tasks(a, room.parts, room.unit, b.nodes[room.node])
	g.Covered = covered(room.parts)
	if a.Count != 1 {
		forget(g)
	}
}
