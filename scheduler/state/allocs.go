// SPDX-License-Identifier: MPL-2.0

package state

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// allocs are those of Nomad's allocs that hold something of their node.
type allocs struct {
	clock  clock
	jobs   *jobs
	byID   map[string]*nomad.Alloc
	byJob  map[nomad.JobKey]map[string]*nomad.Alloc
	onNode map[string]map[string]*nomad.Alloc // by node, which may not be known yet
	// stopping says when it was first seen of each alloc that it is to end.
	stopping map[string]time.Time
}

func newAllocs(c clock, j *jobs) *allocs {
	return &allocs{clock: c, jobs: j, byID: map[string]*nomad.Alloc{}, byJob: map[nomad.JobKey]map[string]*nomad.Alloc{}, onNode: map[string]map[string]*nomad.Alloc{}, stopping: map[string]time.Time{}}
}

// put takes an alloc as it is now, and returns how it was; nil: it was not known.
func (l *allocs) put(a *nomad.Alloc) (before *nomad.Alloc) {
	before = l.byID[a.ID]
	if before != nil {
		a.KeepSaid(before)
	}
	l.byID[a.ID] = a
	if !a.Stopping {
		delete(l.stopping, a.ID)
	} else if l.stopping[a.ID].IsZero() {
		l.stopping[a.ID] = l.clock.Now()
	}
	put(l.byJob, a.Key(), a.ID, a)
	if before != nil && before.NodeID != a.NodeID {
		drop(l.onNode, before.NodeID, a.ID)
	}
	put(l.onNode, a.NodeID, a.ID, a)
	return before
}

// remove forgets an alloc.
func (l *allocs) remove(a *nomad.Alloc) {
	delete(l.byID, a.ID)
	delete(l.stopping, a.ID)
	drop(l.byJob, a.Key(), a.ID)
	drop(l.onNode, a.NodeID, a.ID)
}

// Alloc is an alloc that holds something of its node; nil: there is none.
func (l *allocs) Alloc(id string) *nomad.Alloc { return l.byID[id] }

// Allocs are all allocs, in no order.
func (l *allocs) Allocs() iter.Seq[*nomad.Alloc] { return maps.Values(l.byID) }

// AllocsOn are the allocs on a node, in no order.
func (l *allocs) AllocsOn(node string) iter.Seq[*nomad.Alloc] { return maps.Values(l.onNode[node]) }

// AllocsOf are the allocs of a job, in no order.
func (l *allocs) AllocsOf(key nomad.JobKey) []*nomad.Alloc {
	return slices.Collect(maps.Values(l.byJob[key]))
}

// sortedOn lists the allocs on a node, by ID.
func (l *allocs) sortedOn(node string) []*nomad.Alloc { return byID(l.onNode[node]) }

// sortedOf lists the allocs of a job, by ID.
func (l *allocs) sortedOf(key nomad.JobKey) []*nomad.Alloc { return byID(l.byJob[key]) }

// anyAlloc reports whether a job has an alloc.
func (l *allocs) anyAlloc(key nomad.JobKey) bool { return len(l.byJob[key]) > 0 }

// Live counts the allocs of a group that run or are about to.
func (l *allocs) Live(key nomad.JobKey, group string) int {
	n := 0
	for _, a := range l.byJob[key] {
		if a.Group == group && !a.Stopping {
			n++
		}
	}
	return n
}

// LiveAsAsked counts those of [Reader.Live] that have the devices which their group asks for now.
// The others are of a version that asked for something else, and Nomad found no room to replace
// them.
func (l *allocs) LiveAsAsked(key nomad.JobKey, group string) int {
	g, n := l.jobs.group(key, group), 0
	if g == nil {
		return l.Live(key, group)
	}
	for _, a := range l.byJob[key] {
		if a.Group == group && !a.Stopping && hasWhatIsAsked(a, g) {
			n++
		}
	}
	return n
}

func hasWhatIsAsked(a *nomad.Alloc, g *nomad.Group) bool {
	for i := range g.Tasks {
		asked, held, choice := int64(0), 0, false
		for _, d := range g.Tasks[i].Devices {
			asked, choice = asked+d.Count, choice || d.Name == "" // of several in a block first_available
		}
		for _, d := range a.Devices {
			if d.Task == g.Tasks[i].Name {
				held += len(d.IDs)
			}
		}
		if asked != int64(held) && !choice {
			return false
		}
	}
	return true
}

// present counts the allocs of a job's groups that run and go on, without canaries, which do
// not take the place of others yet.
func (l *allocs) present(key nomad.JobKey) map[string]int {
	n := map[string]int{}
	for _, a := range l.byJob[key] {
		if !a.Stopping && !a.Canary {
			n[a.Group]++
		}
	}
	return n
}

// runsOn counts the allocs of a group that run or are about to, by node.
func (l *allocs) runsOn(key nomad.JobKey, group string) map[string]int {
	n := map[string]int{}
	for _, a := range l.byJob[key] {
		if a.Group == group && !a.Stopping {
			n[a.NodeID]++
		}
	}
	return n
}

// Alive reports whether a job may have allocs that a changed device block would
// replace: Nomad has it, or it was admitted a moment ago.
func (l *allocs) Alive(key nomad.JobKey, known *record.Record) bool {
	if j := l.jobs.Job(key); j != nil {
		return !j.Stopped || slices.ContainsFunc(l.AllocsOf(key), func(a *nomad.Alloc) bool { return !a.Stopping })
	}
	return l.clock.Within(known.At, Unseen)
}

// Stoppable reports whether an alloc may be stopped at all: work with GPUs that
// does not end already, and does not come back at once as that of system jobs does.
func (l *allocs) Stoppable(a *nomad.Alloc) bool {
	j := l.jobs.Job(a.Key())
	return !a.Stopping && len(a.Devices) > 0 && j != nil && (j.Type == "service" || j.Type == "batch")
}

// besideCanary reports whether canaries of an alloc's group wait for promotion.
func (l *allocs) besideCanary(a *nomad.Alloc) bool {
	for _, sibling := range l.byJob[a.Key()] {
		if sibling.Canary && sibling.Group == a.Group && !sibling.Stopping {
			return true
		}
	}
	return false
}

const (
	// LongestStop is after how long an alloc that is to end is not waited for any more: its
	// client may hang, or its processes in the kernel. One that may take longer by its job is evicted
	// without its shutdown_delay.
	LongestStop = 30 * time.Minute
	// Lingering is for how long an alloc that is to end counts as gone where another has
	// started in its place.
	Lingering = time.Minute
	// killing is how much longer than its job says an alloc may take to end.
	killing = 5 * time.Minute
)

// longestStop is the same for one alloc, whose job may say that it takes about as long.
func (l *allocs) longestStop(a *nomad.Alloc) time.Duration {
	return max(LongestStop, min(l.stopTime(a), LongestStop)+killing)
}

// stopTime is how long an alloc may take to end, as its job says.
func (l *allocs) stopTime(a *nomad.Alloc) time.Duration {
	if g := l.jobs.group(a.Key(), a.Group); g != nil {
		return g.StopTime
	}
	return 0
}

// StopsLate reports whether an alloc may take longer to end than it is waited for.
func (l *allocs) StopsLate(id string) bool {
	a := l.byID[id]
	return a != nil && l.stopTime(a) > LongestStop
}

// Stopping are the allocs that are about to end, in no order.
func (l *allocs) Stopping() iter.Seq[*nomad.Alloc] {
	return func(yield func(*nomad.Alloc) bool) {
		for id, since := range l.stopping {
			if a := l.byID[id]; l.clock.Now().Sub(since) < l.longestStop(a) && !yield(a) {
				return
			}
		}
	}
}

// beganToEnd is when the first alloc that is about to end began to, by node.
func (l *allocs) beganToEnd() map[string]time.Time {
	began := map[string]time.Time{}
	for a := range l.Stopping() {
		since := l.stopping[a.ID]
		if first, found := began[a.NodeID]; !found || since.Before(first) {
			began[a.NodeID] = since
		}
	}
	return began
}

// stillEnds reports whether an alloc on one of the selected nodes is about to end, and may have been
// since the given time: if it had begun so long ago that it is given up, it does not count.
func (l *allocs) stillEnds(at time.Time, on func(node string) bool) bool {
	for a := range l.Stopping() {
		if on(a.NodeID) && l.clock.Within(at, l.longestStop(a)) {
			return true
		}
	}
	return false
}

// lingers reports whether an alloc that is to end has been so for longer than work
// usually takes. What Nomad started in its place then counts beside it.
func (l *allocs) lingers(a *nomad.Alloc) bool {
	return a.Stopping && l.clock.Now().Sub(l.stopping[a.ID]) >= Lingering
}

// Lingering are the allocs that linger, in no order.
func (l *allocs) Lingering() iter.Seq[*nomad.Alloc] {
	return func(yield func(*nomad.Alloc) bool) {
		for id := range l.stopping {
			if a := l.byID[id]; l.lingers(a) && len(a.Devices) > 0 && !yield(a) {
				return
			}
		}
	}
}
