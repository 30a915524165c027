// SPDX-License-Identifier: MPL-2.0

package telemetry

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Reader asks devices; owner is the physical GPU's UUID. Every call is bounded in
// time.
type Reader interface {
	Reading(owner, uuid string) (hardware.Reading, error)
	Processes(owner, uuid string) ([]hardware.Process, error)
}

// Published are the last publication: the units, and the drivers by vendor.
type Published interface {
	Units() []*plan.Unit
	Drivers() map[string]hardware.Driver
}

// Meter measures what tasks use of the devices, for the driver's watchdog
// and for statistics. It runs beside the reconciler, and more often.
type Meter struct {
	Observer  Reader
	State     *statedir.Dir
	Published Published
	// Report takes note of how something went this time; nil is well.
	Report func(what string, err error)
	Now    func() time.Time
	// Cgroups reads the control groups of a process.
	Cgroups func(pid int) []cgroup.Group
	latest  atomic.Pointer[gpu.Usage]
	// leases are the live ones of the latest look, for statistics: they are asked
	// for every second, and there can be many files.
	leases atomic.Pointer[[]gpu.Lease]
}

// known are the live leases of the latest look.
func (m *Meter) known() []gpu.Lease {
	if leases := m.leases.Load(); leases != nil {
		return *leases
	}
	return nil
}

// Run measures at an interval until the context ends.
func (m *Meter) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.Measure()
		}
	}
}

// Measure asks the devices that have tasks for their processes and writes down
// whose they are. Without tasks there is nothing to ask, and nothing to write
// once that has been written.
func (m *Meter) Measure() {
	// A lease that cannot be read leaves its own task unmeasured, and no other.
	leases, err := m.State.Leases()
	m.Report("leases to measure", err)
	leases = slices.DeleteFunc(leases, func(l gpu.Lease) bool { return !l.Live() })
	m.leases.Store(&leases)
	units := m.Published.Units()
	if units == nil {
		return
	}
	if last := m.latest.Load(); len(leases) == 0 && last != nil && len(last.Tasks) == 0 {
		return
	}
	usage := gpu.Usage{MeasuredAt: m.Now().UTC()}
	for _, u := range units {
		on := occupancy.On(leases, u.UUID)
		if len(on) == 0 {
			continue
		}
		processes, err := m.Observer.Processes(u.Owner(), u.UUID)
		if err != nil {
			continue // it does not tell: no entry, rather than an entry of zero
		}
		usage.Tasks = append(usage.Tasks, attribute(u, on, processes, m.Cgroups)...)
		if d, told := m.memoryInUse(u); told {
			usage.Devices = append(usage.Devices, d)
		}
	}
	m.latest.Store(&usage)
	m.Report("usage", m.State.WriteUsage(usage))

}

// attribute sums the processes of a device up by task. Processes that belong to
// no task are left out: they are the MPS server's, or another driver's.
func attribute(u *plan.Unit, on []occupancy.Tenant, processes []hardware.Process, cgroups func(int) []cgroup.Group) []gpu.TaskUsage {
	sums := make([]gpu.TaskUsage, len(on))
	for i, t := range on {
		sums[i] = gpu.TaskUsage{LeaseID: t.Lease.ID, UUID: u.UUID, Milli: hardware.Absent}
	}
	for _, p := range processes {
		groups := cgroups(p.PID)
		i := slices.IndexFunc(on, func(t occupancy.Tenant) bool { return cgroup.Within(groups, t.Lease.Cgroup) })
		if i < 0 {
			continue
		}
		s := &sums[i]
		s.Processes++
		s.MemoryMiB += max(0, p.MemoryMiB)
		if p.Milli != hardware.Absent {
			s.Milli = max(0, s.Milli) + p.Milli
		}
		if !p.MPS && !p.MPSUnknown && u.UnderMPS(on[i].Holding) {
			s.BesideMPS = append(s.BesideMPS, p.PID)
		}
	}
	return sums
}

// memoryInUse measures a device whose tasks step aside for each other.
func (m *Meter) memoryInUse(u *plan.Unit) (gpu.DeviceUsage, bool) {
	if u.Seats == nil {
		return gpu.DeviceUsage{}, false
	}
	r, err := m.Observer.Reading(u.Owner(), u.UUID)
	if err != nil || r.MemoryUsedMiB == hardware.Absent || r.MemoryTotalMiB == hardware.Absent {
		return gpu.DeviceUsage{}, false
	}
	reserved := max(0, r.MemoryReservedMiB)
	return gpu.DeviceUsage{UUID: u.UUID, UsedMiB: max(0, r.MemoryUsedMiB-reserved), CapacityMiB: r.MemoryTotalMiB - reserved}, true
}
