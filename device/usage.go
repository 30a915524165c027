package device

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

// usageMeter measures what tasks use of the devices, for the driver's watchdog
// and for statistics. It runs beside the reconciler, and more often.
type usageMeter struct {
	observer  observer
	state     *statedir.Dir
	published *publisher
	logOnce   *onceLogger
	now       func() time.Time
	// cgroups reads the control groups of a process.
	cgroups func(pid int) []cgroup.Group
	latest  atomic.Pointer[gpu.Usage]
	// leases are the live ones of the latest look, for statistics: they are asked
	// for every second, and there can be many files.
	leases atomic.Pointer[[]gpu.Lease]
}

// known are the live leases of the latest look.
func (m *usageMeter) known() []gpu.Lease {
	if leases := m.leases.Load(); leases != nil {
		return *leases
	}
	return nil
}

// run measures at an interval until the context ends.
func (m *usageMeter) run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			m.measure()
		}
	}
}

// measure asks the devices that have tasks for their processes and writes down
// whose they are. Without tasks there is nothing to ask, and nothing to write
// once that has been written.
func (m *usageMeter) measure() {
	// A lease that cannot be read leaves its own task unmeasured, and no other.
	leases, err := m.state.Leases()
	m.logOnce.report("leases to measure", err)
	leases = slices.DeleteFunc(leases, func(l gpu.Lease) bool { return !l.Live() })
	m.leases.Store(&leases)
	units := m.published.units()
	if units == nil {
		return
	}
	if last := m.latest.Load(); len(leases) == 0 && last != nil && len(last.Tasks) == 0 {
		return
	}
	usage := gpu.Usage{MeasuredAt: m.now().UTC()}
	for _, u := range units {
		on := occupancy.On(leases, u.UUID)
		if len(on) == 0 {
			continue
		}
		processes, err := m.observer.Processes(u.Owner(), u.UUID)
		if err != nil {
			continue // it does not tell: no entry, rather than an entry of zero
		}
		usage.Tasks = append(usage.Tasks, attribute(u, on, processes, m.cgroups)...)
		if d, told := m.memoryInUse(u); told {
			usage.Devices = append(usage.Devices, d)
		}
	}
	m.latest.Store(&usage)
	m.logOnce.report("usage", m.state.WriteUsage(usage))

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
