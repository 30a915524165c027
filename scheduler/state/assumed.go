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
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
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

// Assume books the room of a promised alloc.
func (tx *Tx) Assume(key nomad.JobKey, group string, u place.Usage, kept bool) {
	tx.assume(key, group, u, kept, tx.Now())
}

func (tx *Tx) assume(key nomad.JobKey, group string, u place.Usage, kept bool, since time.Time) {
	for i := len(tx.promised[key]); ; i++ {
		u.ID = fmt.Sprintf("assumed:%s/%s#%d", key, group, i)
		if tx.assumed[u.ID] == nil {
			break
		}
	}
	u.Pinned = true
	tx.promise(&Assumed{Job: key, Group: group, Usage: u, Since: since, Kept: kept})
}

// AssumeRest books again what was promised to a group and is missing: where some of it runs
// by now, that is left out on the nodes on which it runs.
func (tx *Tx) AssumeRest(key nomad.JobKey, group string, promised []place.Usage, missing int) {
	came := len(promised) - missing
	runs := tx.runsOn(key, group)
	for _, u := range promised {
		switch {
		case came > 0 && runs[u.NodeID] > 0:
			came--
			runs[u.NodeID]--
		case missing > 0:
			missing--
			tx.Assume(key, group, u, false)
		}
	}
}

func (tx *Tx) promise(a *Assumed) {
	tx.assumed[a.Usage.ID] = a
	put(tx.promised, a.Job, a.Usage.ID, a)
	tx.book(a.Usage)
}

// confirm ends the promise that an alloc keeps: one for the alloc's node if there
// is one, else any of its group.
func (tx *Tx) confirm(a *nomad.Alloc) {
	found := ""
	for id, promised := range tx.promised[a.Key()] {
		if promised.Group != a.Group {
			continue
		}
		here, there := promised.Usage.NodeID == a.NodeID, found != "" && tx.assumed[found].Usage.NodeID == a.NodeID
		if found == "" || here && !there || here == there && id < found {
			found = id
		}
	}
	if found != "" {
		tx.forget(found)
	}
}

// forgetUnplaced ends the promises to groups that Nomad cannot place: they hold
// nothing.
func (tx *Tx) forgetUnplaced(b *nomad.Blocked) {
	for id, a := range tx.promised[b.Key] {
		if b.Missing[a.Group] > 0 && !a.Kept && b.Since.After(a.Since) {
			tx.forget(id)
		}
	}
}

func (tx *Tx) forget(id string) {
	drop(tx.promised, tx.assumed[id].Job, id)
	delete(tx.assumed, id)
	tx.unbook(id)
}

// Forget ends the promises to a job.
func (tx *Tx) Forget(key nomad.JobKey) {
	for id := range tx.promised[key] {
		tx.forget(id)
	}
}

// ForgetGroup ends the promises to a group.
func (tx *Tx) ForgetGroup(key nomad.JobKey, group string) {
	for id, a := range tx.promised[key] {
		if a.Group == group {
			tx.forget(id)
		}
	}
}

// Assumed counts what is promised to a group.
func (r *Reader) Assumed(key nomad.JobKey, group string) int {
	n := 0
	for _, a := range r.promised[key] {
		if a.Group == group {
			n++
		}
	}
	return n
}

// AnyAssumed reports whether anything is promised to a job.
func (r *Reader) AnyAssumed(key nomad.JobKey) bool { return len(r.promised[key]) > 0 }

// AssumedOf lists what is promised to a job, in no order.
func (r *Reader) AssumedOf(key nomad.JobKey) []*Assumed {
	return slices.Collect(maps.Values(r.promised[key]))
}

// AllAssumed lists everything that is promised, in no order.
func (r *Reader) AllAssumed() []Assumed {
	list := make([]Assumed, 0, len(r.assumed))
	for _, a := range r.assumed {
		list = append(list, *a)
	}
	return list
}

// KeptRoom is what room is being made for, in no order.
func (r *Reader) KeptRoom() iter.Seq[*Assumed] {
	return func(yield func(*Assumed) bool) {
		for _, a := range r.assumed {
			if a.Kept && !yield(a) {
				return
			}
		}
	}
}

// Savepoint remembers what is promised to a job, and its claim on a reservation.
// The result brings both back: a promise does not last longer for it, and one that is as it
// was keeps its place among the work of its queue.
func (tx *Tx) Savepoint(key nomad.JobKey) (rollback func()) {
	before := maps.Clone(tx.promised[key])
	claimed := tx.hasClaim(key)
	return func() {
		for id, a := range tx.promised[key] {
			if before[id] != a {
				tx.forget(id)
			}
		}
		for _, a := range slices.SortedFunc(maps.Values(before), oldestFirst) {
			if tx.assumed[a.Usage.ID] != a {
				tx.promise(a)
			}
		}
		if !claimed {
			tx.Unclaim(key)
		}
	}
}

// oldestFirst orders promises: the oldest first, of equals by ID.
func oldestFirst(x, y *Assumed) int {
	return cmp.Or(x.Since.Compare(y.Since), strings.Compare(x.Usage.ID, y.Usage.ID))
}

// makingRoom are the jobs that room is made for and that something still has to end for: on a
// node where they are promised some it began to, before the promise was too old.
func (tx *Tx) makingRoom() map[nomad.JobKey]bool {
	began := tx.beganToEnd()
	jobs := map[nomad.JobKey]bool{}
	for _, a := range tx.assumed {
		if since, found := began[a.Usage.NodeID]; found && a.Kept && since.Sub(a.Since) <= Unplaced {
			jobs[a.Job] = true
		}
	}
	return jobs
}

// recallRoom books again the room that was being made for what is held until all of it is there,
// when another replica led: as long as that has not been too long ago, or what goes for it has not
// ended.
func (tx *Tx) recallRoom(r *record.Record) {
	key, since := r.Key(), time.Time{}
	for _, g := range r.Groups {
		if g.Decision.Hold == nil {
			continue
		}
		if at := g.Attempts.At; tx.Within(at, Unplaced) && at.After(since) {
			since = at
		}
		if tx.stillGoes(&g) {
			since = tx.Now()
		}
	}
	if since.IsZero() {
		return
	}
	for name, g := range r.Groups {
		if g.Decision.Hold == nil || tx.Live(key, name) > 0 {
			continue
		}
		tx.ForgetGroup(key, name)
		for _, u := range g.Assumed {
			tx.assume(key, name, u, true, since)
		}
	}
}

// stillGoes reports whether something has not ended yet where room is being made for a group: it
// may be what began to end when that was decided.
func (tx *Tx) stillGoes(g *record.Group) bool {
	return tx.stillEnds(g.Attempts.At, func(node string) bool {
		return slices.ContainsFunc(g.Assumed, func(u place.Usage) bool { return u.NodeID == node })
	})
}

// Expire ends promises that will no longer be kept, and reservations whose time
// is up. It returns the latter. Room that is made for a job is its own until the last that
// goes for it has ended.
func (tx *Tx) Expire() []*record.Reservation {
	now := tx.Now()
	tx.forgetEvictions()
	tx.wanted.forget(now)
	tx.forgetFailed()
	making := tx.makingRoom()
	for id, a := range tx.assumed {
		limit := Unplaced
		if tx.jobs.byKey[a.Job] == nil {
			limit = Unseen
		}
		if now.Sub(a.Since) > limit && !(a.Kept && making[a.Job]) {
			tx.forget(id)
			tx.version++
		}
	}
	var gone []*record.Reservation
	for id, r := range tx.reservations {
		if !now.Before(r.ExpiresAt) {
			gone = append(gone, r)
			tx.Release(id)
		}
	}
	return gone
}
