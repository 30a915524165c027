package decide

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Due is something that the control loop should do now.
type Due struct {
	Job      nomad.JobKey
	Revision Revision
	// Evict is set when room must be made first, or when what the revision
	// holds must stop.
	Evict *Eviction
}

// settled is how long a group must have waited before anybody is evicted for
// it: Nomad may be about to place it.
const settled = 2 * time.Second

// NextDue returns the next thing to do about a job that skip does not name. Nil
// means that everything that waits has to wait. What is let go comes before what
// needs evictions, of which there are none without mayEvict; each in the order of
// what waits.
func (b *Book) NextDue(skip map[string]bool, mayEvict bool) *Due {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ready() != nil {
		return nil
	}
	pending := b.pending()
	if due := b.firstDue(pending, skip, b.letGo); due != nil {
		return due
	}
	if due := b.drifted(skip); due != nil {
		return due
	}
	if due := b.reopen(skip); due != nil || !mayEvict {
		return due
	}
	if due := b.bringBack(skip); due != nil {
		return due
	}
	if due := b.brokenGang(pending, skip); due != nil {
		return due
	}
	return b.firstDue(pending, skip, b.helpByEviction)
}

// firstDue is the first thing to do for what waits. What is not registered as it
// was decided is left to drifted.
func (b *Book) firstDue(pending []view.Pending, skip map[string]bool, find func(nomad.JobKey, *GroupRecord, view.Pending) *Due) *Due {
	for _, p := range pending {
		key := nomad.JobKey{Namespace: p.Namespace, ID: p.JobID}
		r := b.records[key]
		if r == nil || skip[key.String()] || b.drift[key] || b.unrecorded(key) {
			continue
		}
		g, ok := r.Groups[p.Group]
		promised := b.flying(key, p.Group) // its room is on its way; a gang is held until it is there
		if ok && (!promised || g.Ask.Gang && g.Decision.Hold != nil) {
			if due := find(key, &g, p); due != nil {
				return due
			}
		}
	}
	return nil
}

// unrecorded reports whether a job is registered otherwise than it was recorded: the
// record is of an earlier one of that name, and Nomad alone places this.
func (b *Book) unrecorded(key nomad.JobKey) bool {
	j, r := b.jobs[key], b.records[key]
	return j != nil && !b.underWayTo(r) && slices.ContainsFunc(j.Groups, func(g nomad.Group) bool { return g.GPU() && !recorded(r, &g) })
}

// letGo finds a group that need not wait any more, or not with what it waits
// with.
func (b *Book) letGo(key nomad.JobKey, g *GroupRecord, p view.Pending) *Due {
	if g.Decision.Hold != nil {
		stops := b.live(key, p.Group)+p.Missing > g.Ask.Count // something is about to, and is not seen to yet
		if stops || !b.wouldGo(key, g) {
			return nil
		}
	} else if !b.outside(g) && !b.otherwise(key, g) {
		return nil
	}
	return &Due{Job: key, Revision: Revision{Group: p.Group, Retry: true}}
}

// helpByEviction finds what has to go for a group that waits for room, or, in its
// own queue, for quota.
func (b *Book) helpByEviction(key nomad.JobKey, g *GroupRecord, p view.Pending) *Due {
	name := "evict " + key.String() + "/" + p.Group
	hold := g.Decision.Hold
	switch {
	case !b.config.Preemption.Enabled, b.now().Sub(p.Since) < settled, b.triedInVain(name):
		return nil
	case b.flying(key, p.Group):
		return nil
	case hold != nil && g.Ask.Gang && hold.Kind == view.WaitsForRoom:
	case hold != nil && (hold.Kind != view.WaitsForQuota || p.Missing > 1): // what is held is let go as one
		return nil
	}
	epoch := b.epoch
	var e *Eviction
	if hold != nil && g.Ask.Gang {
		e = b.evictForGang(key)
	} else {
		e = b.evict(key, g)
	}
	b.epoch = epoch
	b.noteFutile(key, p.Group, e == nil)
	if e == nil {
		b.noteVain(name)
		return nil
	}
	if len(e.Victims) == 0 { // what is stopping leaves enough
		for _, promise := range e.Promises {
			b.fly(key, promise.Group, promise.usage, true)
		}
		return nil
	}
	for i := range e.Victims {
		e.Victims[i].Quota = hold != nil && hold.Kind == view.WaitsForQuota
	}
	due := &Due{Job: key, Evict: e, Revision: Revision{Group: p.Group}}
	if e.room != nil { // else it is let go once all of it is there
		due.Revision.Prefer, due.Revision.room = e.room.node, e.room
	}
	return due
}

// noteFutile keeps for people whether evictions were looked for in vain.
func (b *Book) noteFutile(key nomad.JobKey, group string, futile bool) {
	name := key.String() + "/" + group
	if b.futile[name] == futile {
		return
	}
	b.version++
	if futile {
		b.futile[name] = true
	} else {
		delete(b.futile, name)
	}
}

func (b *Book) forgetFutile(key nomad.JobKey) {
	maps.DeleteFunc(b.futile, func(name string, _ bool) bool { return strings.HasPrefix(name, key.String()+"/") })
}

func (b *Book) flying(key nomad.JobKey, group string) bool {
	for _, f := range b.flights {
		if f.key == key && f.group == group {
			return true
		}
	}
	return false
}

// outside reports whether a node that is not among the candidates has room
// for a group: its candidates died or filled up.
func (b *Book) outside(g *GroupRecord) bool {
	if len(g.Decision.Candidates) == 0 || len(g.Excluded) > 0 {
		return false
	}
	found, w := false, b.writtenAs(g)
	for id := range b.nodes {
		if !b.servesNow(id, w, nil) {
			continue
		}
		if slices.Contains(g.Decision.Candidates, id) {
			return false
		}
		found = true
	}
	return found
}

// reopen finds a group whose excluded nodes it may use again, because the one
// that the room was made for runs or has given up.
func (b *Book) reopen(skip map[string]bool) *Due {
	for _, key := range slices.SortedFunc(maps.Keys(b.records), compareKeys) {
		if skip[key.String()] || b.jobs[key] == nil || b.jobs[key].Stopped {
			continue
		}
		r := b.records[key]
		for _, name := range slices.Sorted(maps.Keys(r.Groups)) {
			if include := b.over(r.Groups[name].Excluded); len(include) > 0 {
				return &Due{Job: key, Revision: Revision{Group: name, Include: include}}
			}
		}
	}
	return nil
}

// over lists the nodes whose exclusion has served its purpose.
func (b *Book) over(excluded map[string]string) []string {
	var nodes []string
	for node, who := range excluded {
		key := parseKey(who)
		if b.blocked[key] == nil && !b.anyFlight(key) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// parseKey reads what JobKey.String wrote.
func parseKey(name string) nomad.JobKey {
	namespace, id, _ := strings.Cut(name, "/")
	return nomad.JobKey{Namespace: namespace, ID: id}
}

func (b *Book) anyFlight(key nomad.JobKey) bool {
	for _, f := range b.flights {
		if f.key == key {
			return true
		}
	}
	return false
}
