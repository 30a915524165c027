package device

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
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
func (r *reconciler) prepareMPS(units []*unit, inputs planInputs) {
	var wanted []mps.Spec
	for _, u := range units {
		if u.needsDaemon() {
			spec := r.mpsSpec(u)
			if r.empty(u) {
				spec.EmptyAt = inputs.leasesReadAt
			}
			wanted = append(wanted, spec)
		}
	}
	r.mps.Want(wanted)
	for _, u := range units {
		if u.needsDaemon() {
			status := r.mps.Status(u.uuid)
			u.mps = r.mpsState(u, &status)
			u.unsettled = u.unsettled || !status.Settled
			r.judgeDaemon(u, &status, inputs)
		}
	}
}

// mpsState is what the tasks of a unit need to know of its daemon.
func (r *reconciler) mpsState(u *unit, status *mps.Status) *gpu.MPSState {
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
func (r *reconciler) judgeDaemon(u *unit, status *mps.Status, inputs planInputs) {
	cordon := ""
	switch {
	case status.Server == mps.ServerFault || status.Server == mps.ServerInitializing:
		reason := status.Reason
		if status.Server == mps.ServerFault {
			u.mps.Fault, u.mps.FaultOf = r.serverFault(u, *status, inputs.leases)
			reason = u.mps.Fault.Message
		}
		// What runs goes on, and the server takes clients again by itself.
		cordon = "the MPS server takes no new clients: " + reason
	case !status.Ready:
		action := status.Action
		if action == "" {
			action = "read the logs in " + status.LogDir + "; it is healthy again when the daemon answers"
		}
		u.faults = append(u.faults[:len(u.faults):len(u.faults)], gpu.Fault{
			Code:    "mps-not-ready",
			Message: "the MPS control daemon is not ready: " + status.Reason,
			Action:  action,
			Since:   status.Since,
		})
	default:
		cordon = r.mpsCordon(u, inputs)
	}
	if u.cordon == "" {
		u.cordon = cordon
	}
}

// mpsCordon says why a unit whose daemon is ready takes no further task.
func (r *reconciler) mpsCordon(u *unit, inputs planInputs) string {
	switch p := u.mps.Partitioning; {
	case u.static && p == nil:
		return "waits for its tasks to end, to give each task multiprocessors of its own"
	case !u.static && p != nil:
		return "waits for its tasks to end, to let tasks share its multiprocessors again"
	case p != nil && gpu.ChunksOn(u.uuid, inputs.leases) >= p.Chunks:
		return fmt.Sprintf("all %d chunks of its multiprocessors belong to tasks", p.Chunks)
	case r.mpsClients(u) >= u.mps.MaxClients:
		return fmt.Sprintf("all %d clients that its MPS server can have are there", u.mps.MaxClients)
	case inputs.tasks[u.uuid] >= u.mps.MaxClients:
		return fmt.Sprintf("its MPS server can have %d clients, and as many tasks hold a part of it", u.mps.MaxClients)
	}
	return ""
}

// needsDaemon reports whether an MPS daemon is to serve the unit.
func (u *unit) needsDaemon() bool {
	return u.sharing.Mechanism == gpu.SharingMPS && !u.released && u.unable() == ""
}

// mpsClients counts the programs on a unit's MPS server; none if NVML does not
// tell.
func (r *reconciler) mpsClients(u *unit) int {
	processes, err := r.platform.observer.Processes(u.owner(), u.uuid)
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
func (r *reconciler) empty(u *unit) bool {
	if u.heldAll || len(u.held) > 0 {
		return false
	}
	processes, err := r.platform.observer.Processes(u.owner(), u.uuid)
	return err == nil && !slices.ContainsFunc(processes, func(p hardware.Process) bool { return p.MPS })
}

// mpsSpec is the daemon that a unit needs. Its limits are the most that any
// task may have; the tasks' own, which the driver sets, are within them.
func (r *reconciler) mpsSpec(u *unit) mps.Spec {
	s := mps.Spec{UUID: u.uuid, Percent: int(gpu.Percent(u.sharing.BurstMilli)), Static: u.static}
	if u.sharing.Mode == gpu.ModeSlice {
		s.MemoryMiB = int64(u.slices) * u.sharing.SliceMiB
	}
	s.MaxClients = clientsOf(r.config, u, r.platforms[u.gpu.Vendor])
	return s
}

// clientsOf is how many clients the MPS server of a unit can have, with a CUDA.
func clientsOf(c *config.Config, u *unit, cuda string) int {
	if c.MPS.MaxClients > 0 {
		return c.MPS.MaxClients
	}
	return maxClients(u.gpu.ComputeCapability, cuda)
}

// major is the first number of a compute capability, 0 where that is not known.
func major(capability string) int {
	number, _, _ := strings.Cut(capability, ".")
	n, err := strconv.Atoi(number)
	if err != nil {
		return 0
	}
	return n
}

// maxClients is how many clients an MPS server of a GPU can have: 16 before
// Volta, 48 from Volta on, 60 with CUDA 13.1 and later.
func maxClients(capability, cuda string) int {
	if m := major(capability); m > 0 && m < 7 {
		return 16
	}
	var cudaMajor, cudaMinor int
	if n, _ := fmt.Sscanf(cuda, "%d.%d", &cudaMajor, &cudaMinor); n == 2 && (cudaMajor > 13 || cudaMajor == 13 && cudaMinor >= 1) {
		return mps.MostClients
	}
	return 48
}
