// SPDX-License-Identifier: MPL-2.0

package leases

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// retention is how long the lease of an ended task stays: Nomad restarts a
// task in place with the same reservation, and its GPU must not change mode in
// between.
const retention = 10 * time.Minute

// Book writes the leases of this driver. Claims are made one at a time, so
// that two tasks cannot both take the last of a GPU's compute.
type Book struct {
	mu  sync.Mutex
	dir *statedir.Dir
	// starting holds the IDs of leases whose task is being started by this
	// process. It has no container yet, for as long as its image is pulled.
	starting map[string]bool
}

// Open makes the book write into a directory, in the place of the one before.
func (b *Book) Open(dir *statedir.Dir) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dir = dir
}

// Claim records a lease before its task starts, if its guarantees fit beside
// those of the live leases. A lease that cannot be read counts as a reason to
// stop: it may hold the same share. The start ends with StartEnded.
func (b *Book) Claim(l gpu.Lease) error {
	if len(l.Holdings) == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	leases, err := b.dir.Leases()
	if err != nil {
		return fmt.Errorf("read leases: %w", err)
	}
	if err := gpu.CheckSlices(l, leases); err != nil {
		return fmt.Errorf("%w. The driver removes it as soon as containerd lets it, and Nomad tries again", err)
	}
	if err := gpu.CheckGuarantees(l, leases); err != nil {
		return fmt.Errorf("%w. Nomad counts slices, not compute: it tries this GPU again until the attempts of the group's restart block are used up, and then another node", err)
	}
	if err := b.checkSeat(l, leases); err != nil {
		return err
	}
	if err := b.dir.WriteLease(l); err != nil {
		return err
	}
	if b.starting == nil {
		b.starting = map[string]bool{}
	}
	b.starting[l.ID] = true
	return nil
}

// checkSeat refuses a seat for which the host has no memory left.
func (b *Book) checkSeat(l gpu.Lease, leases []gpu.Lease) error {
	for _, h := range l.Holdings {
		if h.SeatMiB == 0 {
			continue
		}
		s, err := b.dir.GPU(h.UUID)
		if err != nil || s.Seats == nil {
			return fmt.Errorf("GPU %s: the device plugin does not say how its tasks step aside for each other", h.UUID)
		}
		if err := gpu.CheckHostMemory(l, leases, s.Seats.HostMemoryMiB); err != nil {
			return fmt.Errorf("GPU %s: %w", h.UUID, err)
		}
	}
	return nil
}

// StartEnded says that a start is over, whatever came of it.
func (b *Book) StartEnded(l gpu.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.starting, l.ID)
}

// Write records a lease whose task exists already, and so needs no permission.
func (b *Book) Write(l gpu.Lease) error {
	if len(l.Holdings) == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.dir.WriteLease(l)
}

// Resize records another share of a task that runs, if its guarantee fits beside those of
// the others.
func (b *Book) Resize(l gpu.Lease) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	leases, err := b.dir.Leases()
	if err != nil {
		return errors.New("resize: the node's leases cannot be read") // more would tell of others
	}
	at := slices.IndexFunc(leases, func(have gpu.Lease) bool { return have.ID == l.ID })
	if at < 0 || !leases[at].Live() || leases[at].Container != l.Container {
		return errors.New("resize: the task is ending")
	}
	if err := gpu.CheckGuarantees(l, leases); err != nil {
		return fmt.Errorf("resize: %w", err)
	}
	return b.dir.WriteLease(l)
}

// End marks a lease as that of an ended task. A lease that belongs to a later
// container of the same task is left alone.
func (b *Book) End(l gpu.Lease, at time.Time) error {
	if len(l.Holdings) == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if now, err := b.dir.Lease(l.ID); err == nil && now.Container != l.Container {
		return nil
	}
	l.Phase, l.EndedAt = gpu.PhaseEnded, at
	return b.dir.WriteLease(l)
}

// Expire removes the leases of tasks that ended long ago.
func (b *Book) Expire(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir == nil {
		return nil
	}
	leases, err := b.dir.Leases()
	for _, l := range leases {
		if !l.Live() && now.Sub(l.EndedAt) >= retention {
			err = errors.Join(err, b.dir.RemoveLease(l.ID))
		}
	}
	return err
}

// Started returns the leases of tasks that may run, without those that this
// process is starting.
func (b *Book) Started() ([]gpu.Lease, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	leases, err := b.dir.Leases()
	return slices.DeleteFunc(leases, func(l gpu.Lease) bool { return !l.Live() || b.starting[l.ID] }), err
}
