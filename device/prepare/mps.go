// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Daemons supervises MPS control daemons. None of its methods waits for one.
type Daemons interface {
	// Want names the daemons that shall run, and no others.
	Want(specs []mps.Spec)
	// Status tells how the daemon of a device is.
	Status(uuid string) mps.Status
	// Server reports whether a process belongs to a daemon.
	Server(pid int) bool
}

// prepareMPS asks for the daemons that the units need and takes note of how they
// are. A daemon that is not ready is a fault of its unit only.
func (p *Preparer) prepareMPS(units []*plan.Unit, inputs plan.Inputs) {
	var wanted []mps.Spec
	for _, u := range units {
		if u.NeedsDaemon() {
			spec := p.mpsSpec(u)
			spec.Members, spec.MembersAt = gpu.MPSNamespaces(u.UUID, inputs.Leases), inputs.LeasesReadAt
			if p.empty(u) {
				spec.EmptyAt = inputs.LeasesReadAt
			}
			wanted = append(wanted, spec)
		}
	}
	p.Daemons.Want(wanted)
	for _, u := range units {
		if u.NeedsDaemon() {
			status := p.Daemons.Status(u.UUID)
			u.MPS = p.mpsState(u, &status)
			u.Unsettled = u.Unsettled || !status.Settled
			p.judgeDaemon(u, &status, inputs)
		}
	}
}

// mpsState is what the tasks of a unit need to know of its daemon.
func (p *Preparer) mpsState(u *plan.Unit, status *mps.Status) *gpu.MPSState {
	state := &gpu.MPSState{PipeDir: status.PipeDir, ControlDir: status.ControlDir, GateDir: status.GateDir, LogDir: status.LogDir, ShmDir: status.ShmDir,
		Ready: status.Ready, Generation: status.Generation, StartedAt: status.StartedAt, LastEnd: status.LastEnd,
		Protocol: int(status.Protocol), ProtocolReason: status.ProtocolReason, Multiprocessors: status.Multiprocessors,
		Control: p.Config.MPS.Control, Priorities: status.Priorities, MaxClients: p.mpsSpec(u).MaxClients}
	switch {
	case status.Generation == 0: // it was never seen with a server
	case status.MultiUser:
		state.Users = gpu.MPSUsersAny
	default:
		state.Users = gpu.MPSUsersOne
	}
	if parts := status.Partitioning; parts.Static {
		state.Partitioning = &gpu.MPSPartitioning{Chunks: parts.Chunks, Multiprocessors: parts.Multiprocessors}
	}
	return state
}

// judgeDaemon cordons a unit, or marks it faulty, when its daemon or the daemon's server
// cannot take new tasks.
func (p *Preparer) judgeDaemon(u *plan.Unit, status *mps.Status, inputs plan.Inputs) {
	cordon := ""
	switch {
	case status.Server == mps.ServerFault || status.Server == mps.ServerInitializing:
		reason := status.Reason
		if status.Server == mps.ServerFault {
			u.MPS.Fault, u.MPS.FaultOf = p.culprits.serverFault(u, *status, inputs.Leases)
			reason = u.MPS.Fault.Message
		}
		// What runs goes on, and the server takes clients again by itself.
		cordon = "the MPS server takes no new clients: " + reason
	case !status.Ready:
		action := status.Action
		if action == "" {
			action = "read the logs in " + status.LogDir + "; it is healthy again when the daemon answers"
		}
		u.Faults = append(u.Faults[:len(u.Faults):len(u.Faults)], gpu.Fault{
			Code:    "mps-not-ready",
			Message: "the MPS control daemon is not ready: " + status.Reason,
			Action:  action,
			Since:   status.Since,
		})
	default:
		cordon = p.mpsCordon(u, inputs)
	}
	if u.Cordon == "" {
		u.Cordon = cordon
	}
}

// mpsCordon says why a unit whose daemon is ready takes no further task.
func (p *Preparer) mpsCordon(u *plan.Unit, inputs plan.Inputs) string {
	switch parts := u.MPS.Partitioning; {
	case u.Static && parts == nil:
		return "waits for its tasks to end, to give each task multiprocessors of its own"
	case !u.Static && parts != nil:
		return "waits for its tasks to end, to let tasks share its multiprocessors again"
	case parts != nil && gpu.ChunksOn(u.UUID, inputs.Leases) >= parts.Chunks:
		return fmt.Sprintf("all %d chunks of its multiprocessors belong to tasks", parts.Chunks)
	case p.mpsClients(u) >= u.MPS.MaxClients:
		return fmt.Sprintf("all %d clients that its MPS server can have are there", u.MPS.MaxClients)
	case inputs.Tasks[u.UUID] >= u.MPS.MaxClients:
		return fmt.Sprintf("its MPS server can have %d clients, and as many tasks hold a part of it", u.MPS.MaxClients)
	}
	return ""
}

// mpsClients counts the programs on a unit's MPS server; none if NVML does not
// tell.
func (p *Preparer) mpsClients(u *plan.Unit) int {
	processes, err := p.Platform.Observer.Processes(u.Owner(), u.UUID)
	if err != nil {
		return 0
	}
	count := 0
	for _, process := range processes {
		if process.MPS {
			count++
		}
	}
	return count
}

// empty reports whether no task is on a unit: none of the containerd driver by
// its lease, and none of another driver by its processes.
func (p *Preparer) empty(u *plan.Unit) bool {
	if u.HeldAll || len(u.Held) > 0 {
		return false
	}
	processes, err := p.Platform.Observer.Processes(u.Owner(), u.UUID)
	return err == nil && !slices.ContainsFunc(processes, func(process hardware.Process) bool { return process.MPS })
}

// mpsSpec is the daemon that a unit needs. Its limits are the most that any
// task may have; the tasks' own, which the driver sets, are within them.
func (p *Preparer) mpsSpec(u *plan.Unit) mps.Spec {
	s := mps.Spec{UUID: u.UUID, Percent: int(gpu.Percent(u.Sharing.BurstMilli)), Static: u.Static}
	if u.Sharing.Mode == gpu.ModeSlice {
		s.MemoryMiB = int64(u.Slices) * u.Sharing.SliceMiB
	}
	s.Protocol, s.ProtocolReason = protocolOf(p.Config.MPS, u)
	s.MaxClients = plan.MaxClients(p.Config, u, p.versions[u.GPU.Vendor])
	return s
}

// protocolOf is the MPS protocol that is wanted of a unit's daemon, and why that is 2.
func protocolOf(c config.MPS, u *plan.Unit) (wanted mps.Protocol, why string) {
	switch {
	case c.Protocol == "2":
		return mps.ProtocolV2, "mps { protocol = \"2\" } is configured"
	case u.Static:
		return mps.ProtocolV2, "mps { static_partitioning } is configured"
	case u.Instance != nil:
		return mps.ProtocolV2, "NVIDIA documents MPS v3 for GPUs, not for MIG instances"
	case c.Protocol == "3":
		return mps.ProtocolV3, ""
	}
	return mps.ProtocolAuto, ""
}
