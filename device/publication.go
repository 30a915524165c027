// SPDX-License-Identifier: MPL-2.0

package device

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
)

// publication is the outcome of one pass of the reconciler. It is never changed
// after it was made.
type publication struct {
	groups []*device.DeviceGroup
	units  []*plan.Unit
	index  plan.Index
	// drivers are those of the survey, by vendor.
	drivers map[string]hardware.Driver
}

// publisher hands the latest publication to Reserve, Stats and Fingerprint.
type publisher struct {
	latest atomic.Pointer[publication]
	// reserving is held for reading while instances are handed out.
	reserving sync.RWMutex

	mu      sync.Mutex
	changed chan struct{} // closed, and replaced, when Nomad would see a difference

	began time.Time
	// wait is how long the first publication waits for MPS daemons.
	wait time.Duration
	// deadline ends the wait for the first publication.
	deadline sync.Once
}

func newPublisher(now time.Time) *publisher {
	return &publisher{began: now, wait: firstWait, changed: make(chan struct{})}
}

// firstWait is how long the first publication waits for MPS daemons, so that a
// restart of the plugin does not make slices unhealthy for a moment: Nomad would
// take that for a change of the node.
const firstWait = 3 * time.Second

// early reports whether it is better to wait with the first publication; wake is
// called when the wait is over.
func (p *publisher) early(units []*plan.Unit, now time.Time, wake func()) bool {
	if p.latest.Load() != nil || now.Sub(p.began) >= p.wait {
		return false
	}
	waiting := slices.ContainsFunc(units, func(u *plan.Unit) bool { return u.Unsettled })
	if waiting {
		p.deadline.Do(func() { time.AfterFunc(p.wait, wake) })
	}
	return waiting
}

// settled waits until no publication before the latest hands instances out: all of theirs are
// among the reservations then.
func (p *publisher) settled() {
	p.reserving.Lock()
	defer p.reserving.Unlock()
}

// publish makes the units visible, and wakes Fingerprint if Nomad would see a
// difference.
func (p *publisher) publish(m plan.MachineTraits, units []*plan.Unit) {
	next := &publication{groups: plan.Groups(m, units), units: units, index: plan.NewIndex(units), drivers: m.Drivers}
	previous := p.latest.Load()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latest.Store(next)
	if previous != nil && plan.SameGroups(previous.groups, next.groups) {
		return
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// current returns the latest publication, nil before the first, and a channel
// that is closed when there is another.
func (p *publisher) current() (*publication, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latest.Load(), p.changed
}

// Drivers are those of the latest publication, by vendor.
func (p *publisher) Drivers() map[string]hardware.Driver {
	if latest := p.latest.Load(); latest != nil {
		return latest.drivers
	}
	return nil
}

// Units are those of the latest publication.
func (p *publisher) Units() []*plan.Unit {
	if latest := p.latest.Load(); latest != nil {
		return latest.units
	}
	return nil
}
