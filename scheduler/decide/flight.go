package decide

import (
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// flight is one alloc that was promised and that Nomad does not show yet. Its
// room is booked, so that the next decision does not give it away again.
type flight struct {
	key   nomad.JobKey
	group string
	usage place.Usage
	since time.Time
	// keep is set while room is made for the flight: it outlives evaluations
	// that find no room yet.
	keep bool
}

// Promise is the room that is made for one alloc of a group, which is not in it yet.
type Promise struct {
	Job   nomad.JobKey
	Group string
	usage place.Usage
}

// Promise books room that is being made, so that nobody else is sent there, and the
// node that a move leaves stays closed to it until it has landed.
func (b *Book) Promise(p Promise) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.nodes[p.usage.NodeID] == nil {
		return
	}
	b.fly(p.Job, p.Group, p.usage, true)
	b.version++
}

// Withdraw ends a promise that could not be kept.
func (b *Book) Withdraw(p Promise) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropGroupFlights(p.Job, p.Group)
	b.version++
}

const (
	// unseen is how long a job may take to reach Nomad after its admission.
	unseen = 30 * time.Second
	// aloft is how long Nomad may take to place what reached it.
	aloft = 2 * time.Minute
)

// fly books a promise.
func (b *Book) fly(key nomad.JobKey, group string, u place.Usage, keep bool) {
	for i := 0; ; i++ {
		u.ID = fmt.Sprintf("flight:%s/%s#%d", key, group, i)
		if b.flights[u.ID] == nil {
			break
		}
	}
	u.Pinned = true
	b.flights[u.ID] = &flight{key: key, group: group, usage: u, since: b.now(), keep: keep}
	b.book(u)
}

// land ends the flight that an alloc was promised by: one on the alloc's node
// if there is one, else any of its group.
func (b *Book) land(a *nomad.Alloc) {
	found := ""
	for id, f := range b.flights {
		if f.key != a.Key() || f.group != a.Group {
			continue
		}
		here, there := f.usage.NodeID == a.NodeID, found != "" && b.flights[found].usage.NodeID == a.NodeID
		if found == "" || here && !there || here == there && id < found {
			found = id
		}
	}
	if found != "" {
		b.endFlight(found)
	}
}

// fall ends the flights of groups that Nomad cannot place: they hold nothing.
func (b *Book) fall(blocked *nomad.Blocked) {
	for id, f := range b.flights {
		if f.key == blocked.Key && blocked.Missing[f.group] > 0 && !f.keep && blocked.Since.After(f.since) {
			b.endFlight(id)
		}
	}
}

func (b *Book) endFlight(id string) {
	delete(b.flights, id)
	b.unbook(id)
}

func (b *Book) dropFlights(key nomad.JobKey) {
	for id, f := range b.flights {
		if f.key == key {
			b.endFlight(id)
		}
	}
}

func (b *Book) dropGroupFlights(key nomad.JobKey, group string) {
	for id, f := range b.flights {
		if f.key == key && f.group == group {
			b.endFlight(id)
		}
	}
}

// Expire ends flights that nobody will land any more, and reservations whose
// time is up. It returns the expired reservations.
func (b *Book) Expire() []Reservation {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	b.forgetEvictions()
	for id, f := range b.flights {
		limit := aloft
		if b.jobs[f.key] == nil {
			limit = unseen
		}
		if now.Sub(f.since) > limit {
			b.endFlight(id)
			b.version++
		}
	}
	var gone []Reservation
	for id, r := range b.claims {
		if !now.Before(r.ExpiresAt) {
			gone = append(gone, *r)
			b.forgetClaim(id)
		}
	}
	return gone
}
