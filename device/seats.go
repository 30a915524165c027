package device

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
func (r *reconciler) prepareSeats(units []*plan.Unit, machine hardware.Machine) {
	for _, u := range units {
		if u.Sharing.Mechanism != gpu.SharingSuspend || u.Unable() != "" {
			continue
		}
		if r.config.Seats == nil { // the operator wants it otherwise, and tasks are still there
			if old, err := r.state.GPU(u.UUID); err == nil {
				u.Seats = old.Seats
			}
			continue
		}
		if why := r.cannotSuspend(machine.Drivers[u.GPU.Vendor]); why != "" {
			r.addFault(u, gpu.Fault{Code: "sharing-impossible", Message: "sharing \"suspend\": " + why, Action: "change the plugin's configuration, or what the message names"})
			continue
		}
		rules := *r.config.Seats
		suspender, err := subcommand.Suspender(r.config, r.platform.BootID)
		if err != nil {
			r.logOnce.report("command for suspensions", err)
			continue
		}
		rules.Suspender = suspender
		u.Seats = &rules
	}
}

// cannotSuspend says why this machine cannot suspend programs; empty if it can.
func (r *reconciler) cannotSuspend(driver hardware.Driver) string {
	var branch int
	if _, err := fmt.Sscanf(driver.Version, "%d.", &branch); err == nil && branch < checkpointBranch {
		return fmt.Sprintf("NVIDIA's driver %s cannot suspend programs; branch %d and later can", driver.Version, checkpointBranch)
	}
	var host unix.Sysinfo_t
	if r.config.Simulation != nil || unix.Sysinfo(&host) != nil {
		return ""
	}
	if have := int64(host.Totalram) * int64(host.Unit) >> 20; r.config.Seats.HostMemoryMiB > have {
		return fmt.Sprintf("suspend.host_memory: %s is not valid (this machine has %s)", gpu.FormatMemory(r.config.Seats.HostMemoryMiB), gpu.FormatMemory(have))
	}
	return ""
}
