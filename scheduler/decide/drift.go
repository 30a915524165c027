package decide

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// What Nomad has registered is the truth; a record is what the service wrote
// last. They come apart when a job is reverted, by its owner or by a failed
// deployment, or edited around the service, when a Variable is lost, and for the
// children of periodic and parameterized jobs, which have no record of their own.

// recorded reports whether a group is registered as it was recorded.
func recorded(r *Record, g *nomad.Group) bool {
	if r == nil {
		return false
	}
	known, found := r.Groups[g.Name]
	return found && known.print == g.Registered && g.Count <= known.Ask.Count // more were not decided about
}

// inherited reports whether a child's group is as it was recorded of its parent.
func inherited(r *Record, g *nomad.Group) bool {
	if r == nil || g.Inherited == "" {
		return false
	}
	known, found := r.Groups[g.Name]
	return found && known.print == g.Inherited
}

// compare notes whether a job is registered as it was recorded. What bears no
// mark came around the service, and is left as it is.
func (b *Book) compare(key nomad.JobKey) {
	j, r := b.jobs[key], b.records[key]
	drifted := j != nil && !j.Stopped && slices.ContainsFunc(j.Groups, func(g nomad.Group) bool {
		return g.Was != nil && g.GPU() && !recorded(r, &g)
	})
	if drifted {
		b.drift[key] = true
	} else {
		delete(b.drift, key)
	}
}

// echo is how long after Nomad took a job its news may take.
const echo = 3 * time.Second

// underWayTo reports whether what was recorded is still on its way to Nomad, or
// the news of it back.
func (b *Book) underWayTo(r *Record) bool {
	if !r.settled.IsZero() {
		return b.now().Sub(r.settled) < echo
	}
	return b.now().Sub(r.At) < unseen
}

// drifted finds a job whose registration and record have to be brought together.
func (b *Book) drifted(skip map[string]bool) *Due {
	for _, key := range slices.SortedFunc(maps.Keys(b.drift), compareKeys) {
		if skip[key.String()] {
			continue
		}
		if due := b.driftOf(key); due != nil {
			return due
		}
	}
	return nil
}

// driftOf says how to bring one job's registration and record together; nil when
// there is no need. A group that runs without a record needs none until it waits,
// and one that runs above its queue's limit is for bringBack.
func (b *Book) driftOf(key nomad.JobKey) *Due {
	r := b.records[key]
	if !b.drift[key] || r != nil && b.underWayTo(r) {
		return nil
	}
	for _, g := range b.jobs[key].Groups {
		if g.Was == nil || !g.GPU() || recorded(r, &g) {
			continue
		}
		waits := b.blocked[key] != nil && b.blocked[key].Missing[g.Name] > 0
		if !waits && (r == nil || b.exceeds(key, g.Name)) {
			continue
		}
		return &Due{Job: key, Revision: Revision{Group: g.Name, Align: true}}
	}
	return nil
}

// exceeds reports whether the queue that pays for a group holds more than it may.
func (b *Book) exceeds(key nomad.JobKey, group string) bool {
	q := b.queueOf(key, group)
	return b.quotas != nil && q != nil && b.quotas.Excess(b.snap, q.Name) != place.Charge{}
}

// known is what was decided about the ask: its record, or where that is lost or
// another, what is registered. Only what runs is worth keeping as it is.
func (c *choosing) known(have *Record) (GroupRecord, bool) {
	was, found := have.Groups[c.ask.Group]
	if found && was.Key == c.ask.Key() {
		return was, true
	}
	if j := c.book.jobs[c.key]; j != nil && c.book.live(c.key, c.ask.Group) > 0 {
		if g := j.Group(c.ask.Group); g != nil && g.Was != nil && g.Key == c.ask.Key() {
			return c.adopt(g.Was), true
		}
	}
	return GroupRecord{}, false
}

// adopt makes the record of a group of which only the registration is known.
func (c *choosing) adopt(was *admit.Earlier) GroupRecord {
	g := c.native()
	if was != nil {
		g.Decision = was.Decision(c.ask.Group)
		g.Decision.Explanation = []string{"adopted as it is registered"}
	}
	g.Shown.Summary = g.Decision.Explanation[0]
	j := c.book.jobs[c.key]
	g.Direct = j == nil || j.Parent == ""
	for _, a := range c.book.allocsOf(c.key) {
		if u, _ := c.book.snap.Usage(a.ID); a.Group == c.ask.Group && len(u.Takes) > 0 {
			g.Cost = c.book.snap.Charge(u.NodeID, u.Takes)
		}
	}
	return g
}

// align brings what was recorded about a group and what is registered together.
// What runs keeps the device blocks that it runs with; what waits is decided
// about again; a node that is left out stays so.
func (b *Book) align(key nomad.JobKey, a *admit.Ask, was GroupRecord) (GroupRecord, bool) {
	was.Ask = *a
	was.Ask.Was = nil
	if len(was.Excluded) > 0 || a.Was == nil {
		return was, false
	}
	if b.live(key, a.Group) == 0 {
		return was, true
	}
	was.Decision.Hold = nil
	was.Decision.Tasks = a.Was.Decision(a.Group).Tasks
	return was, false
}
