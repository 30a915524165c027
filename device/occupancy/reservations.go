// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/datafile"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Reservations remember what Reserve has handed out until it is known to have
// come back. A task of our driver writes a lease, which then counts. Drivers
// such as docker and raw_exec write none, and Nomad does not say when a task
// ends; but each of its processes was started with the reservation in its
// environment. Nomad asks once in the life of an allocation, so they outlive a
// reboot.
type Reservations struct {
	path string
	// delay is how long one counts after it was made, or last seen in a process.
	delay time.Duration
	// environments reads those of all processes, one after the other, or says why that cannot be.
	environments iter.Seq2[[]byte, error]

	// fresh are those that look has not taken in yet: Reserve must not wait.
	mu    sync.Mutex
	fresh []madeReservation

	// made changes under mu, and is read without it by those that call Look alone.
	made   []madeReservation
	saved  []byte
	looked time.Time
}

// madeReservation is one that no lease stands for yet.
type madeReservation struct {
	gpu.Reservation
	MadeAt time.Time `json:"made_at"`
	// seen is when a process had it last, running whether one has it now.
	seen    time.Time
	running bool
}

type reservationsFile struct {
	Version int               `json:"version"`
	Made    []madeReservation `json:"made"`
}

const (
	reservationsVersion = 1
	reservationsName    = "reservations.json"
)

const (
	// lookPause is the shortest time between two looks at all processes.
	lookPause = 2 * time.Second
	// beginning is how long a task may take from its reservation to its first
	// process and still count as running: a pull of its image is on the way.
	beginning = time.Minute
)

// OpenReservations reads what an earlier run has left; without such a file there
// is nothing.
func OpenReservations(dataDir string, delay time.Duration, now time.Time) (*Reservations, error) {
	r := &Reservations{path: filepath.Join(dataDir, reservationsName), delay: delay, environments: readEnvironments}
	file, text, err := datafile.Read[reservationsFile](r.path, reservationsVersion)
	if err != nil {
		return r, fmt.Errorf("read reservations: %w", err)
	}
	r.saved = text
	r.made = file.Made
	for n := range r.made {
		r.made[n].seen = now
	}
	return r, nil
}

// Add takes note of a reservation.
func (r *Reservations) Add(one gpu.Reservation, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fresh = append(r.fresh, madeReservation{Reservation: one, MadeAt: now.UTC(), seen: now})
}

// Knows reports whether a reservation was given out to a task without a lease.
func (r *Reservations) Knows(one gpu.Reservation) bool {
	value, err := one.EnvValue()
	if err != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	same := func(m madeReservation) bool {
		its, err := m.EnvValue()
		return err == nil && its == value && m.EnvKey() == one.EnvKey()
	}
	return slices.ContainsFunc(r.made, same) || slices.ContainsFunc(r.fresh, same)
}

// takeIn adds the fresh ones. Nomad gives an instance out only when it is free,
// so an earlier reservation of it is over.
func (r *Reservations) takeIn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.fresh {
		r.made = slices.DeleteFunc(r.made, func(m madeReservation) bool { return overlap(m.Devices, one.Devices) })
		r.made = append(r.made, one)
	}
	r.fresh = nil
}

// Look finds out which reservations are still in use, forgets the others, and
// returns the held shares.
func (r *Reservations) Look(leases []gpu.Lease, now time.Time) (live, recent map[string]Holder, err error) {
	var problem error
	r.takeIn()
	r.drop(func(m madeReservation) bool { return m.leased(leases) })
	if len(r.made) > 0 && now.Sub(r.looked) >= lookPause {
		r.looked = now
		problem = r.Match(now)
	}
	r.drop(func(m madeReservation) bool { return now.Sub(m.seen) > r.delay && !m.begins(now) })
	r.saved, err = datafile.Write(r.path, reservationsFile{reservationsVersion, r.made}, r.saved)
	live, recent = r.Held(now)
	return live, recent, errors.Join(problem, err)
}

func (r *Reservations) drop(which func(madeReservation) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = slices.DeleteFunc(r.made, which)
}

// Held is what those hold whose task runs, or is about to, and what all hold:
// also those whose task may start again.
func (r *Reservations) Held(now time.Time) (live, recent map[string]Holder) {
	live, recent = map[string]Holder{}, map[string]Holder{}
	for _, m := range r.made {
		for _, d := range m.Devices {
			hold(recent, d.UUID, d.Slices)
			if m.running || m.begins(now) {
				hold(live, d.UUID, d.Slices)
			}
		}
	}
	return live, recent
}

// Match looks for each reservation in the environments of all processes. Where these cannot be
// read, what ran then runs still.
func (r *Reservations) Match(now time.Time) error {
	entries, running := make([][]byte, len(r.made)), make([]bool, len(r.made))
	for n := range r.made {
		if value, err := r.made[n].EnvValue(); err == nil {
			entries[n] = []byte(r.made[n].EnvKey() + "=" + value + "\x00")
		}
	}
	var problem error
	for env, err := range r.environments {
		if err != nil {
			problem = fmt.Errorf("look for the processes of other drivers' tasks: %w", err)
			break
		}
		for n, entry := range entries {
			running[n] = running[n] || entry != nil && bytes.Contains(env, entry)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.made {
		m := &r.made[n]
		if m.running = running[n] || problem != nil && m.running; m.running {
			m.seen = now
		}
	}
	return problem
}

// begins reports whether the task may not have had time for a process yet.
func (m madeReservation) begins(now time.Time) bool { return now.Sub(m.MadeAt) < beginning }

// leased reports whether a lease that is younger stands for the reservation.
func (m madeReservation) leased(leases []gpu.Lease) bool {
	return slices.ContainsFunc(leases, func(l gpu.Lease) bool {
		return !l.StartedAt.Before(m.MadeAt) && slices.ContainsFunc(l.Holdings, func(h gpu.Holding) bool {
			return overlap(m.Devices, []gpu.ReservedDevice{{UUID: h.UUID, Slices: h.Slices}})
		})
	})
}

// overlap reports whether two reservations have an instance in common. One
// without slices is the whole device.
func overlap(a, b []gpu.ReservedDevice) bool {
	return slices.ContainsFunc(a, func(one gpu.ReservedDevice) bool {
		return slices.ContainsFunc(b, func(other gpu.ReservedDevice) bool {
			return one.UUID == other.UUID && (len(one.Slices) == 0 || len(other.Slices) == 0 ||
				slices.ContainsFunc(one.Slices, func(n int) bool { return slices.Contains(other.Slices, n) }))
		})
	})
}
