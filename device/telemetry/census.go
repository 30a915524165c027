// SPDX-License-Identifier: MPL-2.0

package telemetry

import (
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// census is who is on the devices beside the tasks of the containerd driver.
type census struct {
	leases []gpu.Lease
	// others are tasks of other drivers, known by the reservation in the environment
	// of their processes.
	others []occupant
	// devices are those that told.
	devices map[string]deviceCensus
}

type deviceCensus struct {
	// foreign counts the processes that compute and are no task's, serverMiB is what the MPS
	// server holds for itself.
	foreign   int
	serverMiB int64
}

// look asks every device who is on it. The leases are the live ones.
func (m *Monitor) look(leases []gpu.Lease) census {
	c := census{leases: leases, devices: map[string]deviceCensus{}}
	for _, u := range m.Published.Units() {
		processes, err := m.Observer.Processes(u.Owner(), u.UUID)
		if err != nil || !u.Offered() {
			continue
		}
		var d deviceCensus
		on := occupancy.On(leases, u.UUID)
		for _, p := range processes {
			switch groups := m.Meter.Cgroups(p.PID); {
			case m.Server(p.PID):
				d.serverMiB += max(0, p.MemoryMiB)
			case slices.ContainsFunc(on, func(t occupancy.Tenant) bool { return cgroup.Within(groups, t.Lease.Cgroup) }):
			default:
				if !c.count(u, p, m.Environ(p.PID)) && !p.Graphics {
					d.foreign++
				}
			}
		}
		c.devices[u.UUID] = d
	}
	return c
}

// count adds a process to its task; false if it is no task's on that device, or claims to be
// of one that has a lease, in whose control group it is not.
func (c *census) count(u *plan.Unit, p hardware.Process, environ []byte) bool {
	lease, holding, ok := taskOf(environ, u.UUID)
	if !ok || slices.ContainsFunc(c.leases, func(l gpu.Lease) bool { return l.ID == lease.ID }) {
		return false
	}
	at := slices.IndexFunc(c.others, func(o occupant) bool { return o.lease.ID == lease.ID && o.holding.UUID == u.UUID })
	if at < 0 {
		at = len(c.others)
		c.others = append(c.others, occupant{lease, holding, &gpu.TaskUsage{LeaseID: lease.ID, UUID: u.UUID, Milli: hardware.Absent}, nil})
	}
	usage := c.others[at].usage
	usage.Processes++
	usage.MemoryMiB += max(0, p.MemoryMiB)
	if p.Milli != hardware.Absent {
		usage.Milli = max(0, usage.Milli) + p.Milli
	}
	if !p.MPS && !p.MPSUnknown && u.UnderMPS(holding) {
		usage.BesideMPS = append(usage.BesideMPS, p.PID)
	}
	return true
}

// taskOf reads the task of a process and its share of a device, as Nomad wrote both
// into the environment with which the process began. A program can lie about both,
// so they serve to show and not to act.
func taskOf(environ []byte, uuid string) (gpu.Lease, gpu.Holding, bool) {
	env, reserved := map[string]string{}, map[string]string{}
	for key, value := range occupancy.Variables(environ) {
		switch {
		case gpu.IsReservationKey(key):
			reserved[key] = value
		case strings.HasPrefix(key, "NOMAD_"):
			env[key] = label(value)
		}
	}
	reservations, err := gpu.ReservationsFromEnv(reserved)
	if err != nil {
		return gpu.Lease{}, gpu.Holding{}, false
	}
	for _, r := range reservations {
		for _, d := range r.Devices {
			if d.UUID == uuid {
				lease := gpu.Lease{ID: gpu.LeaseID(env["NOMAD_ALLOC_ID"], env["NOMAD_TASK_NAME"]), AllocID: env["NOMAD_ALLOC_ID"], Namespace: env["NOMAD_NAMESPACE"],
					Job: env["NOMAD_JOB_NAME"], Group: env["NOMAD_GROUP_NAME"], Task: env["NOMAD_TASK_NAME"]}
				return lease, gpu.Holding{UUID: d.UUID, Mode: d.Mode, Slices: d.Slices, Share: gpu.Share{MemoryMiB: d.MemoryMiB}}, true
			}
		}
	}
	return gpu.Lease{}, gpu.Holding{}, false
}

// label makes a value fit for a metric: it is short, and text.
func label(value string) string {
	const longest = 128
	return strings.ToValidUTF8(value[:min(len(value), longest)], "?")
}
