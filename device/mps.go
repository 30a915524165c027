package device

import (
	"fmt"
	"slices"
	"time"

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
func (r *reconciler) prepareMPS(units []*unit, leasesReadAt time.Time) {
	var wanted []mps.Spec
	for _, u := range units {
		if u.sharing.Mechanism == gpu.SharingMPS && !u.released {
			spec := r.mpsSpec(u)
			if r.empty(u) {
				spec.EmptyAt = leasesReadAt
			}
			wanted = append(wanted, spec)
		}
	}
	r.mps.Want(wanted)
	for _, u := range units {
		if u.sharing.Mechanism != gpu.SharingMPS || u.released {
			continue
		}
		status := r.mps.Status(u.uuid)
		u.mps = &gpu.MPSState{PipeDir: status.PipeDir, LogDir: status.LogDir, ShmDir: status.ShmDir,
			Ready: status.Ready, Generation: status.Generation, StartedAt: status.StartedAt, LastEnd: status.LastEnd,
			Control: r.config.mps.Control, MaxClients: r.mpsSpec(u).MaxClients}
		switch {
		case status.Generation == 0: // it was never seen with a server
		case status.MultiUser:
			u.mps.Users = gpu.MPSUsersAny
		default:
			u.mps.Users = gpu.MPSUsersOne
		}
		u.unsettled = u.unsettled || !status.Settled
		switch {
		case status.Server == mps.ServerFault || status.Server == mps.ServerInitializing:
			// What runs goes on, and the server takes clients again by itself.
			if u.cordon == "" {
				u.cordon = "the MPS server takes no new clients: " + status.Reason
			}
			continue
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
			continue
		}
		if u.cordon == "" && r.mpsClients(u) >= u.mps.MaxClients {
			u.cordon = fmt.Sprintf("all %d clients that its MPS server can have are there", u.mps.MaxClients)
		}
	}
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
	s := mps.Spec{UUID: u.uuid, Percent: int(max(1, u.sharing.BurstMilli/10)), MaxClients: r.config.mps.MaxClients}
	if u.sharing.Mode == gpu.ModeSlice {
		s.MemoryMiB = int64(u.slices) * u.sharing.SliceMiB
	}
	if s.MaxClients == 0 {
		s.MaxClients = maxClients(u.gpu.ComputeCapability, r.cuda)
	}
	return s
}

// maxClients is how many clients an MPS server of a GPU can have: 16 before
// Volta, 48 from Volta on, 60 with CUDA 13.1 and later.
func maxClients(capability, cuda string) int {
	var major, cudaMajor, cudaMinor int
	if n, err := fmt.Sscanf(capability, "%d.", &major); n == 1 && err == nil && major < 7 {
		return 16
	}
	if n, _ := fmt.Sscanf(cuda, "%d.%d", &cudaMajor, &cudaMinor); n == 2 && (cudaMajor > 13 || cudaMajor == 13 && cudaMinor >= 1) {
		return 60
	}
	return 48
}
