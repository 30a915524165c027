// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// culprit is whose program brought an MPS server into FAULT. It is found once: the
// program ends by its error, and the text of a fault must not change.
type culprit struct {
	since time.Time
	lease string
	// who is the task in words, empty for a program of no task.
	who string
}

// culprits finds them, and keeps them while the fault of a device's server stands.
type culprits struct {
	// cgroups reads the control groups of a process, also of one that ended a while ago.
	cgroups func(pid int) []cgroup.Group
	found   map[string]culprit // by device
}

// serverFault is what stands of a unit's MPS server, and the lease of the task that
// caused it.
func (c *culprits) serverFault(u *plan.Unit, status mps.Status, leases []gpu.Lease) (*gpu.Fault, string) {
	found := c.found[u.UUID]
	if found.since != status.Since || found.since.IsZero() {
		found = c.find(u, status, leases)
		c.found[u.UUID] = found
	}
	f := &gpu.Fault{Code: "mps-fault", Message: status.Reason, Since: status.Since, Fatal: true,
		Action: "it takes new clients when the programs of all tasks on the device have ended"}
	if found.who != "" {
		f.Message = fmt.Sprintf("process %d of %s had a fatal GPU error: its server takes no new clients until all that were there have ended", status.Culprit, found.who)
	}
	return f, found.lease
}

// find finds the task of the process that the server's log names.
func (c *culprits) find(u *plan.Unit, status mps.Status, leases []gpu.Lease) culprit {
	found := culprit{since: status.Since}
	if status.Culprit == 0 {
		return found
	}
	groups := c.cgroups(status.Culprit)
	for _, l := range leases {
		onUnit := slices.ContainsFunc(l.Holdings, func(h gpu.Holding) bool { return h.UUID == u.UUID })
		if onUnit && cgroup.Within(groups, l.Cgroup) {
			found.lease, found.who = l.ID, fmt.Sprintf("task %s of job %s (allocation %s)", l.Task, l.Job, l.AllocID)
		}
	}
	return found
}
