package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// A gang is the allocs of all groups of a job that say so. They are held until
// there is room for all of them, and let go as one; work is evicted for all or
// none; as a victim a gang goes as a whole; and one of which Nomad started, or
// kept, only a part goes back to waiting as one.

// isGang reports whether a group is part of its job's gang.
func (b *Book) isGang(key nomad.JobKey, group string) bool {
	j := b.jobs[key]
	if j == nil {
		return false
	}
	g := j.Group(group)
	return g != nil && g.Gang
}

// holdGang holds every group of a job's gang where one of them has to wait. A gang
// of which something runs is not held here: the hold would cover what runs.
func (b *Book) holdGang(key nomad.JobKey, asks []admit.Ask, groups map[string]GroupRecord) {
	var why *admit.Hold
	first := ""
	for i := range asks {
		if !asks[i].Gang {
			continue
		}
		if b.live(key, asks[i].Group) > 0 {
			return
		}
		if hold := groups[asks[i].Group].Decision.Hold; why == nil && hold != nil {
			why, first = hold, asks[i].Group
		}
	}
	if why == nil {
		return
	}
	for i := range asks {
		g, known := groups[asks[i].Group]
		if !known || !asks[i].Gang || g.Decision.Hold != nil {
			continue
		}
		b.dropGroupFlights(key, asks[i].Group)
		c := &choosing{book: b, key: key, ask: &asks[i]}
		c.queue, _ = b.config.QueueFor(asks[i].Namespace, asks[i].Queue) // it was found a moment ago
		hold := &admit.Hold{Kind: why.Kind, Sentence: fmt.Sprintf("it starts together with group %s: %s", first, why.Sentence)}
		g.Flights, g.Decision.Preferred = nil, nil
		groups[asks[i].Group] = c.markHeld(g, hold)
	}
}

// tooFew is the hold of a gang group for which there is room for some only.
func (c *choosing) tooFew(found int) *admit.Hold {
	return &admit.Hold{Kind: view.WaitsForRoom, Sentence: fmt.Sprintf("its %d allocs start together, and there is room for %d", c.ask.Together(), found)}
}

// gangAsks are the asks of a job's gang as they were recorded, by group.
func (r *Record) gangAsks() []admit.Ask {
	var asks []admit.Ask
	for _, g := range r.Groups {
		if g.Ask.Gang {
			asks = append(asks, g.Ask)
		}
	}
	slices.SortFunc(asks, func(x, y admit.Ask) int { return strings.Compare(x.Group, y.Group) })
	return asks
}

// reconsiderAll decides about a group that waits as if it came now, and about all
// of its gang.
func (b *Book) reconsiderAll(key nomad.JobKey, a *admit.Ask, groups map[string]GroupRecord) (map[string]GroupRecord, error) {
	asks := []admit.Ask{*a}
	if a.Gang {
		asks = b.records[key].gangAsks()
	}
	next := map[string]GroupRecord{}
	for i := range asks {
		was, known := groups[asks[i].Group]
		if !known || b.live(key, asks[i].Group) > 0 && asks[i].Group != a.Group {
			continue
		}
		g, err := b.reconsider(key, &asks[i], was)
		if err != nil {
			return nil, err
		}
		next[asks[i].Group] = g
	}
	b.holdGang(key, asks, next)
	return next, nil
}

// evictForGang plans the evictions that let a whole gang start; nil where there
// are none, for one of its allocs at least.
func (b *Book) evictForGang(key nomad.JobKey) *Eviction {
	asks := b.records[key].gangAsks()
	var rs []place.Request
	var of []*choosing
	for i := range asks {
		a := &asks[i]
		c := &choosing{book: b, key: key, ask: a}
		var err error
		if c.queue, err = b.config.QueueFor(a.Namespace, a.Queue); err != nil || b.live(key, a.Group) > 0 {
			return nil
		}
		if c.parts, err = b.parts(a, c.queue); err != nil || len(c.parts) != 1 {
			return nil // several device blocks are placed on one node: the core plans one request each
		}
		for n := range a.Together() {
			r := c.parts[0].req
			r.ID = fmt.Sprintf("%s/%d", r.ID, n)
			r.Priority -= b.config.Preemption.MinGap - 1
			rs, of = append(rs, r), append(of, c)
		}
	}
	defer b.withoutStopping()()
	plan, err := b.preemptSparing(rs)
	if err != nil || len(plan.Victims) == 0 {
		return nil
	}
	e := &Eviction{Job: key, Group: asks[0].Group}
	for i := range plan.Placements {
		u := plan.Placements[i].Usage
		u.Priority = of[i].parts[0].req.Priority
		e.Promises = append(e.Promises, Promise{key, of[i].ask.Group, u})
	}
	b.describe(e, of[0], plan.Victims)
	return e
}

// preemptSparing looks for victims that stand alone before it takes whole gangs.
func (b *Book) preemptSparing(rs []place.Request) (place.Plan, error) {
	for i := range rs {
		rs[i].SpareGangs = true
	}
	plan, err := b.plan.Preempt(rs, b.now())
	if err == nil {
		return plan, nil
	}
	for i := range rs {
		rs[i].SpareGangs = false
	}
	return b.plan.Preempt(rs, b.now())
}

// withGangs adds to some victims the rest of their gangs.
func (b *Book) withGangs(victims []place.Usage) []place.Usage {
	out := slices.Clone(victims)
	for _, v := range victims {
		a := b.allocs[v.ID]
		if v.Gang == "" || a == nil {
			continue
		}
		for _, rank := range b.allocsOf(a.Key()) {
			u, booked := b.snap.Usage(rank.ID)
			if booked && u.Gang == v.Gang && !rank.Stopping && !slices.ContainsFunc(out, func(have place.Usage) bool { return have.ID == u.ID }) {
				out = append(out, u)
			}
		}
	}
	return out
}

// gangPatience is how long a gang may run in part: Nomad may be about to start the
// rest.
const gangPatience = time.Minute

// brokenGang finds a gang of which too few run, and has it wait as a whole.
func (b *Book) brokenGang(pending []view.Pending, skip map[string]bool) *Due {
	for _, p := range pending {
		key := nomad.JobKey{Namespace: p.Namespace, ID: p.JobID}
		r := b.records[key]
		if r == nil || skip[key.String()] || b.drift[key] || b.now().Sub(p.Since) < gangPatience || b.anyFlight(key) {
			continue
		}
		g, known := r.Groups[p.Group]
		if !known || !g.Ask.Gang || g.Decision.Hold != nil || b.live(key, p.Group) >= g.Ask.Together() {
			continue
		}
		if due := b.sendBack(key, p.Group); due != nil {
			return due
		}
	}
	return nil
}

// sendBack has a gang wait as a whole; nil where nothing of it runs.
func (b *Book) sendBack(key nomad.JobKey, group string) *Due {
	e := &Eviction{Job: key, Group: group}
	for _, a := range b.allocsOf(key) {
		if b.isGang(key, a.Group) && b.stoppable(a) {
			e.Victims = append(e.Victims, Victim{AllocID: a.ID, Job: key, Group: a.Group, Node: a.NodeID, Priority: b.priorityOf(key)})
		}
	}
	if len(e.Victims) == 0 {
		return nil
	}
	slices.SortFunc(e.Victims, func(x, y Victim) int {
		return cmp.Or(strings.Compare(x.Group, y.Group), strings.Compare(x.AllocID, y.AllocID))
	})
	e.Text = fmt.Sprintf("job %s starts together or not at all, and %d of its allocs found no room for the others", key, len(e.Victims))
	for i := range e.Victims {
		e.Victims[i].Text = e.Text
	}
	return &Due{Job: key, Evict: e, Revision: Revision{Group: group, Hold: &admit.Hold{Kind: view.WaitsForRoom, Sentence: "its allocs start together, and only some found room"}}}
}
