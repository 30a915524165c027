package device

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// gatherInputs gathers what the plan depends on.
func (r *reconciler) gatherInputs(machine hardware.Machine) plan.Inputs {
	cordons, err := r.cordons.All()
	r.logOnce.report("cordons", err)
	leasesReadAt := r.now() // before it: a lease that is written meanwhile is younger
	leases, err := r.state.Leases()
	r.logOnce.report("leases", err)
	if err != nil {
		leasesReadAt = time.Time{}
	}
	live, recent, reservationsErr := r.reservations.Look(leases, r.now())
	r.logOnce.report("reservations", reservationsErr)
	now := plan.Inputs{
		Holders: occupancy.Merge(live, occupancy.Holders(occupancy.LiveAfter(leases, r.now()))),
		Recent:  occupancy.Merge(recent, occupancy.Holders(occupancy.LiveAfter(leases, r.now().Add(-r.config.ModeChangeDelay)))),
		Busy:    map[string]bool{},
		Cordons: cordons,
		Faults:  map[string][]gpu.Fault{},

		Tasks:        occupancy.TasksOn(occupancy.LiveAfter(leases, r.now())),
		Leases:       leases,
		LeasesReadAt: leasesReadAt,
	}
	for _, uuid := range r.registry.GPUs() {
		now.Faults[uuid] = r.health.Faults(uuid)
	}
	for _, g := range machine.GPUs {
		now.Faults[g.UUID] = r.health.Faults(g.UUID)
		for _, i := range g.Partitions {
			now.Faults[i.UUID] = r.health.Faults(i.UUID)
		}
		if err != nil {
			now.Busy[g.UUID] = true // what is held is not known
		} else if r.changing(g) {
			r.findBusy(g, now.Busy)
		}
	}
	return now
}

// changing reports whether a GPU is to be offered in another way than before.
func (r *reconciler) changing(g hardware.GPU) bool {
	known := r.registry.Records[g.UUID]
	if known == nil || known.Sharing == (config.Sharing{}) {
		return false
	}
	rule := r.config.RuleFor(g, known.Index)
	if !known.Sharing.Same(rule.Sharing) || plan.LayoutCordon(rule, g, true) != "" {
		return true
	}
	return slices.ContainsFunc(g.Partitions, func(i hardware.Partition) bool {
		known := r.registry.Records[i.UUID]
		return known != nil && known.Sharing != config.Sharing{} && !known.Sharing.Same(rule.SharingOfInstance(i.Profile))
	})
}

// findBusy marks a GPU and its MIG instances that have processes, or that do
// not tell.
func (r *reconciler) findBusy(g hardware.GPU, busy map[string]bool) {
	uuids := []string{g.UUID}
	for _, i := range g.Partitions {
		uuids = append(uuids, i.UUID)
	}
	for _, uuid := range uuids {
		processes, err := r.platform.Observer.Processes(g.UUID, uuid)
		if err != nil || slices.ContainsFunc(processes, func(p hardware.Process) bool { return !r.mps.Server(p.PID) }) {
			busy[uuid] = true
		}
	}
}
