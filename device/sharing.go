package device

import (
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// prepareSharing gives the units what their tasks need: CDI names, compute modes, MPS
// daemons, HAMi-core and time slices. What fails is a fault of that unit only.
func (r *reconciler) prepareSharing(units []*plan.Unit, machine hardware.Machine, inputs plan.Inputs) {
	r.faults.begin()
	for _, u := range units {
		u.Static = r.config.MPS.Static && u.Sharing.Mechanism == gpu.SharingMPS
		r.checkVendor(u)
	}
	r.prepareCDI(units)
	r.prepareHAMi(units)
	r.prepareMemoryLimits(units)
	r.prepareSeats(units, machine)
	r.prepareComputeModes(units, inputs) // before the MPS servers, which the mode is for
	r.prepareMPS(units, inputs)
	r.prepareTimeslices(units)
	r.layOut(units)
	for _, u := range units {
		r.checkComputeMode(u)
	}
	r.faults.end()
}

// checkComputeMode finds GPUs whose compute mode lets only one program in.
func (r *reconciler) checkComputeMode(u *plan.Unit) {
	if u.GPU.Exclusive && u.SharedFlag() && u.Sharing.Mechanism != gpu.SharingMPS {
		r.addFault(u, gpu.Fault{Code: "compute-mode", Message: "the GPU's compute mode is not Default, so that only one program can use it",
			Action: "run nvidia-smi -i " + u.Owner() + " -c DEFAULT"})
	}
}

// writeStates publishes the units to the task driver.
func (r *reconciler) writeStates(units []*plan.Unit) {
	written := map[string]bool{}
	for _, u := range units {
		written[u.UUID] = true
		r.logOnce.report("state of "+u.UUID, r.state.WriteGPU(u.State()))
	}
	old, err := r.state.GPUs()
	r.logOnce.report("states", err)
	for _, s := range old {
		if !written[s.UUID] {
			r.logOnce.report("state of "+s.UUID, r.state.RemoveGPU(s.UUID))
		}
	}
}

// checkVendor makes a fault of what the vendor's devices cannot.
func (r *reconciler) checkVendor(u *plan.Unit) {
	if why := u.Unable(); why != "" {
		r.addFault(u, gpu.Fault{Code: "sharing-impossible", Message: why, Action: "change the plugin's configuration for this device"})
	}
}
