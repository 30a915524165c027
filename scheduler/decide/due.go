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

// NextDue returns what to do for the first waiting group, in order of
// priority, that can be helped, and which skip does not name. Nil means that
// everything that waits has to wait.
func (b *Book) NextDue(skip map[string]bool) *Due {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ready() != nil {
		return nil
	}
	for _, p := range b.pending() {
		key := nomad.JobKey{Namespace: p.Namespace, ID: p.JobID}
		if skip[key.String()] {
			continue
		}
		if b.drift[key] { // what it waits for is not what was recorded
			if due := b.driftOf(key); due != nil {
				return due
			}
			continue
		}
		if r := b.records[key]; r != nil {
			if g, ok := r.Groups[p.Group]; ok {
				if due := b.help(key, &g, p); due != nil {
					return due
				}
			}
		}
	}
	if due := b.bringBack(skip); due != nil {
		return due
	}
	if due := b.drifted(skip); due != nil {
		return due
	}
	return b.reopen(skip)
}

// help finds what would help a waiting group.
func (b *Book) help(key nomad.JobKey, g *GroupRecord, p view.Pending) *Due {
	due := &Due{Job: key, Revision: Revision{Group: p.Group}}
	hold := g.Decision.Hold
	if hold != nil && hold.Kind == view.WaitsForQuota && b.overQuota(p.Queue, g.Cost.Times(int64(p.Missing))) != "" {
		if p.Missing > 1 {
			return nil // the group is let go as one
		}
		return b.helpByEviction(due, g, p) // of lower priorities in its own queue
	}
	if hold != nil && hold.Kind == view.WaitsForPriority && b.stillYields(key, g) {
		return nil
	}
	if hold != nil && hold.Kind == view.WaitsForRoom && b.reservedAway(g) != nil && !b.otherwise(key, g) {
		return nil
	}
	if b.flying(key, p.Group) {
		return nil // room is on its way
	}
	switch {
	case hold != nil && hold.Kind != "":
		due.Revision.Retry = true
		return due
	case b.outside(g), b.otherwise(key, g):
		due.Revision.Retry = true
		return due
	}
	return b.helpByEviction(due, g, p)
}

func (b *Book) helpByEviction(due *Due, g *GroupRecord, p view.Pending) *Due {
	if !b.config.Preemption.Enabled || b.now().Sub(p.Since) < settled || b.flying(due.Job, p.Group) {
		return nil
	}
	due.Evict = b.evict(due.Job, g)
	b.noteFutile(due.Job, p.Group, due.Evict == nil)
	if due.Evict == nil {
		return nil
	}
	due.Revision.Prefer, due.Revision.room = due.Evict.Node, due.Evict.room
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

// stillYields reports whether a group that was held back for a higher
// priority would take its room still.
func (b *Book) stillYields(key nomad.JobKey, g *GroupRecord) bool {
	c := &choosing{book: b, key: key, ask: &g.Ask}
	free, w := false, b.writtenAs(g)
	for _, id := range b.nodeIDs() {
		if !b.servesNow(id, w, nil) {
			continue
		}
		free = true
		if c.yield(id) == nil {
			return false
		}
	}
	return free || len(b.waitingAbove(g.Ask.Priority, key)) > 0
}

// waitingAbove lists the waiting jobs with a higher priority.
func (b *Book) waitingAbove(priority int, than nomad.JobKey) []nomad.JobKey {
	return slices.DeleteFunc(b.waiting(), func(key nomad.JobKey) bool {
		j := b.jobs[key]
		return key == than || j == nil || j.Priority <= priority
	})
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
		namespace, id, _ := strings.Cut(who, "/")
		key := nomad.JobKey{Namespace: namespace, ID: id}
		if b.blocked[key] == nil && !b.anyFlight(key) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

func (b *Book) anyFlight(key nomad.JobKey) bool {
	for _, f := range b.flights {
		if f.key == key {
			return true
		}
	}
	return false
}

// Note writes an event for people.
func (b *Book) Note(e view.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.At = b.now()
	b.log.event(e)
	b.version++
}
