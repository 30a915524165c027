package device

import (
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// daemons supervises MPS control daemons. None of its methods waits for one.
type daemons interface {
	// Want names the daemons that shall run, and no others.
	Want(specs []mps.Spec)
	// Status tells how the daemon of a device is.
	Status(uuid string) mps.Status
	// Server reports whether a process belongs to a daemon.
	Server(pid int) bool
	// Close ends the supervision, not the daemons.
	Close()
}

// prepareMPS asks for the daemons that the units need and takes note of how they
// are. A daemon that is not ready is a fault of its unit only.
func (r *reconciler) prepareMPS(units []*plan.Unit, inputs plan.Inputs) {
	var wanted []mps.Spec
	for _, u := range units {
		if u.NeedsDaemon() {
			spec := r.mpsSpec(u)
			if r.empty(u) {
				spec.EmptyAt = inputs.LeasesReadAt
			}
			wanted = append(wanted, spec)
		}
	}
	r.mps.Want(wanted)
	for _, u := range units {
		if u.NeedsDaemon() {
			status := r.mps.Status(u.UUID)
			u.MPS = r.mpsState(u, &status)
			u.Unsettled = u.Unsettled || !status.Settled
			r.judgeDaemon(u, &status, inputs)
		}
	}
}

// mpsState is what the tasks of a unit need to know of its daemon.
func (r *reconciler) mpsState(u *plan.Unit, status *mps.Status) *gpu.MPSState {
	state := &gpu.MPSState{PipeDir: status.PipeDir, ControlDir: status.ControlDir, LogDir: status.LogDir, ShmDir: status.ShmDir,
		Ready: status.Ready, Generation: status.Generation, StartedAt: status.StartedAt, LastEnd: status.LastEnd,
		Control: r.config.MPS.Control, Priorities: status.Priorities, MaxClients: r.mpsSpec(u).MaxClients}
	switch {
	case status.Generation == 0: // it was never seen with a server
	case status.MultiUser:
		state.Users = gpu.MPSUsersAny
	default:
		state.Users = gpu.MPSUsersOne
	}
	if p := status.Partitioning; p.Static {
		state.Partitioning = &gpu.MPSPartitioning{Chunks: p.Chunks, Multiprocessors: p.Multiprocessors}
	}
	return state
}

// judgeDaemon cordons a unit, or marks it faulty, when its daemon or the daemon's server
// cannot take new tasks.
func (r *reconciler) judgeDaemon(u *plan.Unit, status *mps.Status, inputs plan.Inputs) {
	cordon := ""
	switch {
	case status.Server == mps.ServerFault || status.Server == mps.ServerInitializing:
		reason := status.Reason
		if status.Server == mps.ServerFault {
			u.MPS.Fault, u.MPS.FaultOf = r.serverFault(u, *status, inputs.Leases)
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
		cordon = r.mpsCordon(u, inputs)
	}
	if u.Cordon == "" {
		u.Cordon = cordon
	}
}

// mpsCordon says why a unit whose daemon is ready takes no further task.
func (r *reconciler) mpsCordon(u *plan.Unit, inputs plan.Inputs) string {
	switch p := u.MPS.Partitioning; {
	case u.Static && p == nil:
		return "waits for its tasks to end, to give each task multiprocessors of its own"
	case !u.Static && p != nil:
		return "waits for its tasks to end, to let tasks share its multiprocessors again"
	case p != nil && gpu.ChunksOn(u.UUID, inputs.Leases) >= p.Chunks:
		return fmt.Sprintf("all %d chunks of its multiprocessors belong to tasks", p.Chunks)
	case r.mpsClients(u) >= u.MPS.MaxClients:
		return fmt.Sprintf("all %d clients that its MPS server can have are there", u.MPS.MaxClients)
	case inputs.Tasks[u.UUID] >= u.MPS.MaxClients:
		return fmt.Sprintf("its MPS server can have %d clients, and as many tasks hold a part of it", u.MPS.MaxClients)
	}
	return ""
}

// mpsClients counts the programs on a unit's MPS server; none if NVML does not
// tell.
func (r *reconciler) mpsClients(u *plan.Unit) int {
	processes, err := r.platform.Observer.Processes(u.Owner(), u.UUID)
	if err != nil {
		return 0
	}
	count := 0
	for _, p := range processes {
		if p.MPS {
			count++
		}
	}
	return count
}

// empty reports whether no task is on a unit: none of the containerd driver by
// its lease, and none of another driver by its processes.
func (r *reconciler) empty(u *plan.Unit) bool {
	if u.HeldAll || len(u.Held) > 0 {
		return false
	}
	processes, err := r.platform.Observer.Processes(u.Owner(), u.UUID)
	return err == nil && !slices.ContainsFunc(processes, func(p hardware.Process) bool { return p.MPS })
}

// mpsSpec is the daemon that a unit needs. Its limits are the most that any
// task may have; the tasks' own, which the driver sets, are within them.
func (r *reconciler) mpsSpec(u *plan.Unit) mps.Spec {
	s := mps.Spec{UUID: u.UUID, Percent: int(gpu.Percent(u.Sharing.BurstMilli)), Static: u.Static}
	if u.Sharing.Mode == gpu.ModeSlice {
		s.MemoryMiB = int64(u.Slices) * u.Sharing.SliceMiB
	}
	s.MaxClients = plan.MaxClients(r.config, u, r.platforms[u.GPU.Vendor])
	return s
}
