// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/seats"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// seatBook are the devices whose tasks step aside for each other. A controller of each
// decides who is on it (see driver/seats); here are its inputs and its actions.
type seatBook struct {
	mu      sync.Mutex
	devices map[string]*seatDevice
	// ready are the leases of starts that only wait for a seat, by ID.
	ready map[string]bool
	// wishes are what tasks have asked for and no step has seen yet, by lease.
	wishes map[string]seats.Wish
}

type seatDevice struct {
	// mu is held while tasks are moved.
	mu         sync.Mutex
	controller *seats.Controller
	// hostMiB is what its tasks have on the host.
	hostMiB int64
}

// known is a device that is kept already, or nil.
func (b *seatBook) known(uuid string) *seatDevice {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.devices[uuid]
}

// device returns the device and whether it is a new one, which the caller then keeps.
func (b *seatBook) device(uuid string) (*seatDevice, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.devices[uuid]; d != nil {
		return d, false
	}
	if b.devices == nil {
		b.devices = map[string]*seatDevice{}
	}
	b.devices[uuid] = &seatDevice{}
	return b.devices[uuid], true
}

// othersMiB is what tasks of the other devices have on the host.
func (b *seatBook) othersMiB(uuid string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	sum := int64(0)
	for other, d := range b.devices {
		if other != uuid {
			sum += d.hostMiB
		}
	}
	return sum
}

func (b *seatBook) noteHost(d *seatDevice, mib int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d.hostMiB = mib
}

func (b *seatBook) setReady(leaseID string, ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ready == nil {
		b.ready = map[string]bool{}
	}
	if b.ready[leaseID] = ready; !ready {
		delete(b.ready, leaseID)
	}
}

func (b *seatBook) isReady(leaseID string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready[leaseID]
}

// ask notes what a task asks for; the last word counts.
func (b *seatBook) ask(leaseID string, w seats.Wish) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wishes == nil {
		b.wishes = map[string]seats.Wish{}
	}
	b.wishes[leaseID] = w
}

// asked is what a task has asked for and no step has seen yet; take takes it away.
func (b *seatBook) asked(leaseID string, take bool) seats.Wish {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.wishes[leaseID]
	if take {
		delete(b.wishes, leaseID)
	}
	return w
}

func rulesOf(r gpu.SeatRules) seats.Rules {
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	return seats.Rules{Idle: ms(r.IdleMS), MinTurn: ms(r.MinTurnMS), MaxWait: ms(r.MaxWaitMS),
		SwitchPercent: r.SwitchPercent, HeadroomMiB: r.HeadroomMiB, HostMiB: r.HostMemoryMiB, RefuseFixed: r.Unsuspendable == gpu.UnsuspendableRefuse}
}
