package decide

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// patience is how long a group waits until later ones of the same priority leave
// it the room that it waits for: before that, whoever fits goes first.
const patience = time.Minute

// waiter is a group that waits for room, with the node that it is kept for.
type waiter struct {
	key    nomad.JobKey
	group  string
	turn   place.Request // only what the order needs
	blocks *written
	node   string
}

// turnOf is a group's place in the order of what waits.
func (b *Book) turnOf(a *admit.Ask, since time.Time) place.Request {
	r := place.Request{ID: a.Namespace + "/" + a.JobID + "/" + a.Group, Priority: a.Priority, Submit: since}
	if q, err := b.config.QueueFor(a.Namespace, a.Queue); err == nil && q != nil {
		r.Queue, r.Priority = q.Name, min(a.Priority, q.MaxPriority)
	}
	return r
}

// mostKept bounds for how many waiting groups a node is kept at once.
const mostKept = 32

// waiters lists the groups that wait for room in their order, and keeps one node
// for each that could get it: where the least has to go.
func (b *Book) waiters() []waiter {
	var list []waiter
	for key, blocked := range b.blocked {
		r := b.records[key]
		if r == nil || b.drift[key] || b.unrecorded(key) {
			continue
		}
		for name, missing := range blocked.Missing {
			g, known := r.Groups[name]
			if missing > 0 && known && g.Decision.Hold == nil {
				list = append(list, waiter{key: key, group: name, turn: b.turnOf(&g.Ask, blocked.Since)})
			}
		}
	}
	slices.SortFunc(list, func(x, y waiter) int { return b.plan.Compare(&x.turn, &y.turn) })
	list = list[:min(mostKept, len(list))]
	kept := map[string]bool{}
	for i := range list {
		w := &list[i]
		g := b.records[w.key].Groups[w.group]
		w.blocks = b.writtenAs(&g)
		w.node = b.nodeToKeep(w, kept)
		kept[w.node] = true
	}
	return list
}

// nodeToKeep is the node where the least must go for a waiting group to start;
// empty where it cannot get any.
func (b *Book) nodeToKeep(w *waiter, kept map[string]bool) string {
	best, least := "", int64(0)
	for _, id := range b.nodeIDs() {
		if kept[id] || !b.servesNow(id, w.blocks, b.goesFor(w)) {
			continue
		}
		goes := int64(0)
		for _, u := range b.snap.UsagesOn(id) {
			if b.goesFor(w)(&u) {
				goes += max(1, b.snap.Charge(id, u.Takes).Milli)
			}
		}
		if best == "" || goes < least {
			best, least = id, goes
		}
	}
	return best
}

// goesFor selects the work that ends before a waiting group has to give up: what
// ends by itself or already, and what may be evicted for it.
func (b *Book) goesFor(w *waiter) func(*place.Usage) bool {
	return func(u *place.Usage) bool {
		a := b.allocs[u.ID]
		if a == nil || len(u.Takes) == 0 || a.Key() == w.key {
			return false
		}
		if j := b.jobs[a.Key()]; a.Stopping || j != nil && j.Type == "batch" {
			return true
		}
		q := b.config.Queue(u.Queue)
		return b.config.Preemption.Enabled && !u.Pinned && u.Priority < w.turn.Priority && (q == nil || !q.Protected)
	}
}

// keptFor is the waiting group that a placement would take its room from; nil for
// none. A group that waits goes before whatever has a lower priority, and, once it
// has waited for some time, before what comes later with the same.
func (c *choosing) keptFor(u *unit) *waiter {
	b, own := c.book, c.turn()
	for i := range c.waiters() {
		w := &c.ahead[i]
		patient := w.turn.Priority == own.Priority && b.now().Sub(w.turn.Submit) >= patience && b.plan.Compare(&w.turn, &own) < 0
		if w.key == c.key || w.node != u.node || w.turn.Priority <= own.Priority && !patient {
			continue
		}
		trial := u.usage
		trial.ID, trial.Pinned = "trial:"+trial.ID, true
		if err := b.snap.Observe(trial); err != nil {
			continue
		}
		left := b.servesNow(w.node, w.blocks, b.goesFor(w))
		if _, err := b.snap.Release(trial.ID); err != nil {
			b.log.trouble(b.now(), err)
		}
		if !left {
			return w
		}
	}
	return nil
}

// waiters are looked up once per decision.
func (c *choosing) waiters() []waiter {
	if !c.looked {
		c.ahead, c.looked = c.book.waiters(), true
	}
	return c.ahead
}

// turn is the ask's place in the order: what waits already keeps the time since
// when it does.
func (c *choosing) turn() place.Request {
	since := c.book.now()
	if blocked := c.book.blocked[c.key]; blocked != nil && blocked.Missing[c.ask.Group] > 0 {
		since = blocked.Since
	}
	return c.book.turnOf(c.ask, since)
}

// unkept places one alloc where it takes nobody's room. Where there is room that
// is kept only, it returns for whom.
func (c *choosing) unkept(parts []part) (unit, *admit.Hold, error) {
	parts = slices.Clone(parts)
	banned := map[string]bool{}
	var hold *admit.Hold
	for {
		u, err := c.book.board(false).place(parts)
		if err != nil {
			return u, hold, err
		}
		w := c.keptFor(&u)
		if w == nil {
			return u, nil, nil
		}
		if hold == nil {
			hold = &admit.Hold{Kind: view.WaitsForPriority, Sentence: fmt.Sprintf("%s with priority %d waits for room that this would take", c.other(w.key), w.turn.Priority)}
		}
		banned[u.node] = true
		for i := range parts {
			parts[i].req.Nodes = c.book.board(false).without(c.parts[i].req.Nodes, banned)
		}
	}
}

// trial is when something was looked for in vain, and in which epoch.
type trial struct {
	epoch uint64
	at    time.Time
}

// again is how long what was looked for in vain is not looked for again while
// nothing changes that could make a difference, other than time.
const again = 5 * time.Second

func (b *Book) triedInVain(name string) bool {
	t, found := b.tried[name]
	return found && t.epoch == b.epoch && b.now().Sub(t.at) < again
}

func (b *Book) noteVain(name string) { b.tried[name] = trial{b.epoch, b.now()} }

// forgetTrials forgets what was looked for about a job.
func (b *Book) forgetTrials(key nomad.JobKey) {
	for name := range b.tried {
		if strings.Contains(name, " "+key.String()+"/") {
			delete(b.tried, name)
		}
	}
}

// wouldGo reports whether a group that is held would be let go if it was decided
// about now. Nothing is changed.
func (b *Book) wouldGo(key nomad.JobKey, g *GroupRecord) bool {
	name := "release " + key.String() + "/" + g.Ask.Group
	if b.triedInVain(name) {
		return false
	}
	epoch, before, claimed := b.epoch, b.flightsOf(key), b.claimedBy(key)
	next, err := b.reconsiderAll(key, &g.Ask, b.records[key].Groups)
	b.restore(key, before)
	if !claimed {
		b.unclaim(key)
	}
	b.epoch = epoch
	if err == nil && next[g.Ask.Group].Decision.Hold == nil {
		return true
	}
	b.noteVain(name)
	return false
}
