// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/subcommand"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// checkpointBranch is the first of NVIDIA's driver that suspends processes.
const checkpointBranch = 570

// prepareSeats gives devices whose tasks step aside for each other their rules.
func (p *Preparer) prepareSeats(units []*plan.Unit, machine hardware.Machine) {
	for _, u := range units {
		if u.Sharing.Mechanism != gpu.SharingSuspend || u.Unable() != "" {
			continue
		}
		if p.Config.Seats == nil { // the operator wants it otherwise, and tasks are still there
			if old, err := p.State.GPU(u.UUID); err == nil {
				u.Seats = old.Seats
			}
			continue
		}
		if why := p.cannotSuspend(machine.Drivers[u.GPU.Vendor]); why != "" {
			p.faults.add(u, gpu.Fault{Code: "sharing-impossible", Message: "sharing \"suspend\": " + why, Action: "change the plugin's configuration, or what the message names"})
			continue
		}
		rules := *p.Config.Seats
		suspender, err := subcommand.Suspender(p.Config, p.Platform.BootID)
		if err != nil {
			p.Report("command for suspensions", err)
			continue
		}
		rules.Suspender = suspender
		u.Seats = &rules
	}
}

// cannotSuspend says why this machine cannot suspend programs; empty if it can.
func (p *Preparer) cannotSuspend(driver hardware.Driver) string {
	var branch int
	if _, err := fmt.Sscanf(driver.Version, "%d.", &branch); err == nil && branch < checkpointBranch {
		return fmt.Sprintf("NVIDIA's driver %s cannot suspend programs; branch %d and later can", driver.Version, checkpointBranch)
	}
	var host unix.Sysinfo_t
	if p.Config.Simulation != nil || unix.Sysinfo(&host) != nil {
		return ""
	}
	if have := int64(host.Totalram) * int64(host.Unit) >> 20; p.Config.Seats.HostMemoryMiB > have {
		return fmt.Sprintf("suspend.host_memory: %s is not valid (this machine has %s)", gpu.FormatMemory(p.Config.Seats.HostMemoryMiB), gpu.FormatMemory(have))
	}
	return ""
}
