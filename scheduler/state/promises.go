// SPDX-License-Identifier: MPL-2.0

package state

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

const (
	// Unseen is how long a job may take to reach Nomad after its admission.
	Unseen = 30 * time.Second
	// Unplaced is how long Nomad may take to place what reached it.
	Unplaced = 2 * time.Minute
)

// Assumed is one alloc that was promised and that Nomad does not show yet. Its room
// is booked, so that the next decision does not give it away again.
type Assumed struct {
	Job   nomad.JobKey
	Group string
	Usage place.Usage
	Since time.Time
	// Kept is set while room is made for the alloc: it outlives evaluations that
	// find no room yet.
	Kept bool
}

// promises are the assumed allocs.
type promises struct {
	byID  map[string]*Assumed
	byJob map[nomad.JobKey]map[string]*Assumed
}

func newPromises() *promises {
	return &promises{byID: map[string]*Assumed{}, byJob: map[nomad.JobKey]map[string]*Assumed{}}
}

// put takes a promise, under the ID of its usage.
func (p *promises) put(a *Assumed) {
	p.byID[a.Usage.ID] = a
	put(p.byJob, a.Job, a.Usage.ID, a)
}

// promise is the one of an ID; nil: there is none.
func (p *promises) promise(id string) *Assumed { return p.byID[id] }

// remove ends a promise.
func (p *promises) remove(id string) {
	drop(p.byJob, p.byID[id].Job, id)
	delete(p.byID, id)
}

// assumed begins the IDs of promises.
const assumed = "assumed:"

// isAssumed reports whether a usage is a promise. It is pinned only until the alloc is there.
func isAssumed(u *place.Usage) bool { return strings.HasPrefix(u.ID, assumed) }

// freeID is an ID for another promise to a group.
func (p *promises) freeID(key nomad.JobKey, group string) string {
	for i := len(p.byJob[key]); ; i++ {
		if id := fmt.Sprintf("%s%s/%s#%d", assumed, key, group, i); p.byID[id] == nil {
			return id
		}
	}
}

// keptBy is the promise that an alloc keeps: one for the alloc's node if there
// is one, else any of its group; empty: none.
func (p *promises) keptBy(a *nomad.Alloc) (id string) {
	for other, promised := range p.byJob[a.Key()] {
		if promised.Group != a.Group {
			continue
		}
		here, there := promised.Usage.NodeID == a.NodeID, id != "" && p.byID[id].Usage.NodeID == a.NodeID
		if id == "" || here && !there || here == there && other < id {
			id = other
		}
	}
	return id
}

// refused yields the promises to groups that Nomad cannot place: they hold nothing.
func (p *promises) refused(b *nomad.Blocked) iter.Seq[string] {
	return p.ids(b.Key, func(a *Assumed) bool {
		return b.Missing[a.Group] > 0 && !a.Kept && b.Since.After(a.Since)
	})
}

// on lists the promises on a node, the oldest first.
func (p *promises) on(node string) []*Assumed {
	var list []*Assumed
	for _, a := range p.byID {
		if a.Usage.NodeID == node {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, oldestFirst)
	return list
}

// late yields the promises that are too old to be kept: those to jobs that Nomad does not have are
// sooner, and those to jobs for which room is being made are not. They may be ended meanwhile.
func (p *promises) late(now time.Time, known func(nomad.JobKey) bool, making map[nomad.JobKey]bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for id, a := range p.byID {
			limit := Unplaced
			if !known(a.Job) {
				limit = Unseen
			}
			if now.Sub(a.Since) > limit && !(a.Kept && making[a.Job]) && !yield(id) {
				return
			}
		}
	}
}

// ids yields the promises to a job that match. They may be ended meanwhile.
func (p *promises) ids(key nomad.JobKey, match func(*Assumed) bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for id, a := range p.byJob[key] {
			if match(a) && !yield(id) {
				return
			}
		}
	}
}

// copyOf is the promises to a job, by ID.
func (p *promises) copyOf(key nomad.JobKey) map[string]*Assumed { return maps.Clone(p.byJob[key]) }

// Assumed counts the promises to a group.
func (p *promises) Assumed(key nomad.JobKey, group string) int {
	n := 0
	for _, a := range p.byJob[key] {
		if a.Group == group {
			n++
		}
	}
	return n
}

// anyAssumed reports whether anything is promised to a job.
func (p *promises) anyAssumed(key nomad.JobKey) bool { return len(p.byJob[key]) > 0 }

// AssumedOf lists the promises to a job, in no order.
func (p *promises) AssumedOf(key nomad.JobKey) []*Assumed {
	return slices.Collect(maps.Values(p.byJob[key]))
}

// AllAssumed lists everything that is promised, in no order.
func (p *promises) AllAssumed() []Assumed {
	list := make([]Assumed, 0, len(p.byID))
	for _, a := range p.byID {
		list = append(list, *a)
	}
	return list
}

// makingRoom are the jobs that room is made for and whose victims have not all ended: on a node where
// they are promised room, something is ending that began to within Unplaced of the promise. Began says
// when the first alloc on each node began to end.
func (p *promises) makingRoom(began map[string]time.Time) map[nomad.JobKey]bool {
	jobs := map[nomad.JobKey]bool{}
	for _, a := range p.byID {
		if since, found := began[a.Usage.NodeID]; found && a.Kept && since.Sub(a.Since) <= Unplaced {
			jobs[a.Job] = true
		}
	}
	return jobs
}

// oldestFirst orders promises: the oldest first, of equals by ID.
func oldestFirst(x, y *Assumed) int {
	return cmp.Or(x.Since.Compare(y.Since), strings.Compare(x.Usage.ID, y.Usage.ID))
}
