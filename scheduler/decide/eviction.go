package decide

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
	// Rivals wait as well, and Nomad could give them the room.
	Rivals []Rival
	// Yielding groups wait as well, and give up their claim on the quota.
	Yielding []Yielding
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

	// Room is where the one that waits goes; nil for what is held, which is let go once all
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
	if tx.Node(p.Usage.NodeID) == nil {
		return
	}
	tx.Assume(p.Job, p.Group, p.Usage, true)
	tx.Changed()
}

// Forget ends a promise that could not be kept.
func (p Promise) Forget(tx *state.Tx) {
	tx.ForgetGroup(p.Job, p.Group)
	tx.Changed()
}

// Rival is a waiting group to keep off the nodes where room is made for another.
type Rival struct {
	Job   nomad.JobKey
	Group string
	Nodes []string
	// BestEffort is set where its priority is lower: Nomad may still give the room to the other one, and the
	// eviction is carried out even if this group cannot be kept off it.
	BestEffort bool
}

// Victim is an alloc to evict.
type Victim struct {
	AllocID, Group, Node string
	To                   string // where a victim that is moved goes
	// Hold has its group wait for its turn: Nomad would start it again at once in room that is kept for
	// what goes before it. Nil where it would not, or something else of the group runs.
	Hold *admit.Hold
	Job  nomad.JobKey
	// Gang victims go with all of their gang, and wait as one.
	Gang bool
	// Quota is the queue whose quota a victim gives up: elsewhere it would take that back.
	// Empty where it goes for the room alone.
	Quota string
	// Also are nodes where room is made for other jobs, by node: it would take that.
	Also     map[string]string
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
	if g.Decision.Hold == nil {
		e.Room = room
	}
	payable := false
	if e.Yielding, payable = yielding(tx, key, g, e.Promises, room.victims); !payable {
		return nil
	}
	e.describe(a, room.victims, window)
	return e.unlessInVain(tx)
}

// unlessInVain returns nil where another waiting group would take the room and cannot be kept off it,
// or should not be yet.
func (e *Eviction) unlessInVain(tx *state.Tx) *Eviction {
	if slices.ContainsFunc(e.Rivals, func(r Rival) bool { return !r.BestEffort && !e.mayKeepOff(tx, r.Job) }) {
		return nil
	}
	return e
}

// mayKeepOff reports whether a job may be kept off the room. That registers it, and Nomad then runs the
// job's completed allocs again: unless the job loses allocs to this eviction anyway, it is kept off
// only once the group that the room is for has waited for as long as that repeats.
func (e *Eviction) mayKeepOff(tx *state.Tx, key nomad.JobKey) bool {
	waited := time.Duration(0)
	if b := tx.Blocked(e.Job); b != nil {
		waited = tx.Now().Sub(b.Since)
	}
	goes := slices.ContainsFunc(e.Victims, func(v Victim) bool { return v.Job == key })
	return !tx.Unchangeable(key) && (goes || tx.Repeats(key) <= waited)
}

// withoutStopping takes what is about to end off the books: room that is being
// made already need not be made again. The result puts it back.
func withoutStopping(tx *state.Tx) func() {
	return tx.Without(tx.Stopping())
}

// makeRoom tries the core's choices until one gives Nomad room for the group's
// device blocks, which only count when they are not to be rewritten.
func makeRoom(a groupAsk, g *record.Group, rewrite bool, window *Window) *Room {
	tx, parts, banned, tries := a.tx, a.parts, map[string]bool{}, blocks.Tries
	if heldForTurn(g) {
		tries += turns.MostKept
		defer window.bookFree(a)()
	}
	for range tries {
		room, at, err := preempt(tx, parts, banned, tx.Config().Preemption.MinGap)
		switch {
		case err == nil && heldForTurn(g) && !window.leaves(a, room):
		case err == nil && len(room.victims) == 0 && g.Decision.Hold == nil && roomNow(tx, room.at.Node, g):
			return nil // Nomad is about to use it
		case err == nil && (rewrite || servesAfter(tx, room, g)):
			room.rewrite, room.parts = rewrite, parts
			return room
		case at == "" || err != nil && !errors.Is(err, place.ErrNoRoom):
			return nil
		}
		banned[at] = true
	}
	return nil
}

// heldForTurn reports whether a group is held because others go before it.
func heldForTurn(g *record.Group) bool {
	return g.Decision.Hold != nil && g.Decision.Hold.Kind == view.WaitsForPriority
}

// roomNow reports whether a node has room for a group beside what is stopping.
func roomNow(tx *state.Tx, node string, g *record.Group) bool {
	for a := range tx.AllocsOn(node) {
		if a.Stopping {
			return false
		}
	}
	return tx.Serves(node, blocks.NeedOf(tx, g), nil)
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
	return tx.Serves(room.at.Node, blocks.NeedOf(tx, g), func(u *place.Usage) bool {
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
		a := tx.Alloc(u.ID)
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
		e.Victims[i].Hold = window.holdAfter(tx, e, &e.Victims[i])
		e.Victims[i].Text = fmt.Sprintf("%s must leave node %s: job %s %s", who[i], tx.Node(e.Victims[i].Node).Plan.Name, waiting.key, why)
		if e.Idle {
			e.Victims[i].Text = fmt.Sprintf("%s must leave node %s: %s, and job %s waits for %s", who[i], tx.Node(e.Victims[i].Node).Plan.Name, idleText(tx, e.Victims[i].AllocID), waiting.key, waiting.ask)
		}
		if n := tx.Completed(e.Victims[i].Job); n > 0 {
			e.Victims[i].Text += fmt.Sprintf("; Nomad runs %d of the job's allocs again with it, which have completed", n)
		}
	}
	e.Rivals = rivals(tx, e)
	e.alsoKeptOff(tx)
	e.Text = fmt.Sprintf("%s must go: job %s %s", strings.Join(who, ", "), waiting.key, why)
}

// idleText says for how long an alloc has not used its GPUs, and who wants it to go then.
func idleText(tx *state.Tx, id string) string {
	a := tx.Alloc(id)
	since, _ := tx.IdleSince(a)
	after, action := tx.IdleRule(a)
	text := fmt.Sprintf("it has not used its GPUs since %s UTC", since.UTC().Format("2006-01-02 15:04"))
	if q := tx.QueueOf(a.Key(), a.Group); q != nil {
		text += fmt.Sprintf(" (queue %s: idle_after %s, idle_action %q)", q.Name, after, action)
	}
	return text
}

// mostRivals is how many groups with a lower priority are looked at: each of them that would
// take the room is registered again.
const mostRivals = 100

// mostAtOnce is how many of them are kept off room that comes free in one moment. Nomad then evaluates as
// many jobs as all of its servers have schedulers, those that come first in its order, and any of them
// may get the room, each as often as the others: of 40 times the first one got it 11 times with 5
// schedulers, 4 times with 9 and twice with 17 (TestWhoGetsRoomInNomad). A server has as many schedulers as
// processors; the one that leads uses a quarter of them. So this is enough for three servers with up to
// 8 processors each.
const mostAtOnce = 20

// rivals are the groups that wait for room too and could take what is made. Nomad goes by the priority
// of jobs alone, and knows of no queue that takes back its own: so these are all with the same or a
// higher priority. To what is held until all of its room is there, each that waits comes first. Of what has
// a lower priority otherwise, those are kept off that Nomad evaluates at the same time, or that need
// only a part of the room, which is there before the rest.
func rivals(tx *state.Tx, e *Eviction) (list []Rival) {
	var lower []*state.Waiting
	room := roomOf(tx, e)
	for w := range tx.WaitingFor("") {
		switch {
		case w.Job == e.Job:
		case tx.PriorityOf(w.Job) < tx.PriorityOf(e.Job):
			lower = append(lower, w)
		default:
			if r, _ := room.rival(w); len(r.Nodes) > 0 {
				list = append(list, r)
			}
		}
	}
	lower = append(lower, aboutToWait(tx, e)...)
	slices.SortFunc(lower, func(x, y *state.Waiting) int {
		return cmp.Or(tx.PriorityOf(y.Job)-tx.PriorityOf(x.Job), cmp.Compare(tx.Queued(x.Job), tx.Queued(y.Job)), strings.Compare(x.Turn.ID, y.Turn.ID))
	})
	atOnce := 0
	for _, w := range lower[:min(len(lower), mostRivals)] {
		if tx.Unchangeable(w.Job) || e.Room != nil && (!e.mayKeepOff(tx, w.Job) || tx.RepeatsAbove(w.Job) != "" || tx.Assumed(w.Job, w.Group) > 0) {
			continue
		}
		r, early := room.rival(w)
		if len(r.Nodes) == 0 || e.Room != nil && atOnce == mostAtOnce && !early {
			continue
		}
		atOnce++
		r.BestEffort = e.Room != nil
		list = append(list, r)
	}
	return list
}

// aboutToWait are groups that do not wait yet: they are being evicted for another job, and what has to go
// of them has not ended. All that have a lower priority are best effort, as those that wait.
func aboutToWait(tx *state.Tx, e *Eviction) (list []*state.Waiting) {
	for _, key := range tx.KeptOff() {
		for _, a := range tx.AllocsOf(key) {
			known := func(w *state.Waiting) bool { return w.Job == key && w.Group == a.Group }
			off := tx.Record(key).Groups[a.Group].Excluded[a.NodeID] != ""
			if a.Stopping && off && key != e.Job && tx.Job(key) != nil && tx.Job(key).Group(a.Group) != nil && tx.Missing(key, a.Group) == 0 && tx.PriorityOf(key) < tx.PriorityOf(e.Job) && !slices.ContainsFunc(list, known) {
				list = append(list, &state.Waiting{Job: key, Group: a.Group})
			}
		}
	}
	return list
}

// alsoKeptOff has victims leave out the nodes where room is made for other jobs than this one as well.
func (e *Eviction) alsoKeptOff(tx *state.Tx) {
	for i := range e.Victims {
		v := &e.Victims[i]
		need := needFor(tx, v.Job, tx.Job(v.Job).Group(v.Group))
		if v.Gang || v.To != "" || need == nil {
			continue
		}
		for kept := range tx.KeptRoom() {
			node := kept.Usage.NodeID
			gone := func(u *place.Usage) bool {
				return u.ID == kept.Usage.ID || slices.ContainsFunc(e.Victims, func(v Victim) bool { return v.AllocID == u.ID })
			}
			if kept.Job == v.Job || kept.Job == e.Job || v.Also[node] != "" && v.Also[node] < kept.Job.String() || !tx.ServesNow(node, need, gone) {
				continue
			}
			if v.Also == nil {
				v.Also = map[string]string{}
			}
			v.Also[node] = kept.Job.String()
		}
	}
}

// rivalRoom is the room that an eviction makes, as those see it that wait for room too.
type rivalRoom struct {
	tx      *state.Tx
	nodes   []string
	victims map[string]bool // by alloc
	// parts are what the room comes free with, one after the other; with one there is nothing before all
	// is there.
	parts  []string
	ending bool // something else ends there, which is off the books already
}

func roomOf(tx *state.Tx, e *Eviction) *rivalRoom {
	m := &rivalRoom{tx: tx, nodes: e.Nodes(), victims: map[string]bool{}}
	for _, v := range e.Victims {
		m.victims[v.AllocID] = true
		if slices.Contains(m.nodes, v.Node) {
			m.parts = append(m.parts, v.AllocID)
		}
	}
	for a := range tx.Stopping() {
		m.ending = m.ending || slices.Contains(m.nodes, a.NodeID)
	}
	return m
}

// rival is a group that waits, with the nodes where it could take the room: none where it could not. Early
// is set where a part of the room is enough for it.
func (m *rivalRoom) rival(w *state.Waiting) (r Rival, early bool) {
	r = Rival{Job: w.Job, Group: w.Group}
	need := needFor(m.tx, w.Job, m.tx.Job(w.Job).Group(w.Group))
	if need == nil {
		return r, false
	}
	for _, node := range m.nodes {
		if mayStartOn(m.tx, w, node) && m.tx.ServesNow(node, need, m.without("")) {
			r.Nodes = append(r.Nodes, node)
			early = early || m.ending || len(m.parts) > 1 && slices.ContainsFunc(m.parts, func(left string) bool { return m.tx.ServesNow(node, need, m.without(left)) })
		}
	}
	return r, early
}

// without are the victims, but for one that has not ended; empty: all have.
func (m *rivalRoom) without(left string) func(*place.Usage) bool {
	return func(u *place.Usage) bool { return m.victims[u.ID] && u.ID != left }
}

// mayStartOn reports whether Nomad could start a group on a node: on one of its candidates, where it has
// some. One that is kept off a node already is kept off it for the next one as well.
func mayStartOn(tx *state.Tx, w *state.Waiting, node string) bool {
	r := tx.Record(w.Job)
	if r == nil || tx.Drifted(w.Job) || tx.Unrecorded(w.Job) {
		return true
	}
	g := r.Groups[w.Group]
	return len(g.Decision.Candidates) == 0 || slices.Contains(g.Decision.Candidates, node) || g.Excluded[node] != ""
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

// needFor is what a registered group needs; nil where it waits for
// something else than room.
func needFor(tx *state.Tx, key nomad.JobKey, g *nomad.Group) *state.Need {
	if r := tx.Record(key); r != nil {
		if known, found := r.Groups[g.Name]; found {
			if known.Decision.Hold != nil {
				return nil
			}
			return blocks.NeedOf(tx, &known)
		}
	}
	need := &state.Need{}
	for _, t := range g.Tasks {
		for _, d := range t.Devices {
			need.Alloc.Devices = append(need.Alloc.Devices, place.Block{Device: d.Name, Count: d.Count})
		}
	}
	if len(need.Alloc.Devices) == 0 {
		return nil
	}
	return need
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
