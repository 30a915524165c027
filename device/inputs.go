package device

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// inputSource is where the inputs of a plan come from.
type inputSource struct {
	report       func(what string, err error)
	config       *config.Config
	registry     *registry.Registry
	cordons      registry.Flags
	reservations *occupancy.Reservations
	state        *statedir.Dir
	health       *health.Tracker
	observer     fleet.Observer
	// server tells the processes of MPS daemons.
	server func(pid int) bool
	now    func() time.Time
}

// gather gathers what a plan depends on.
func (s *inputSource) gather(machine hardware.Machine) plan.Inputs {
	cordons, err := s.cordons.All()
	s.report("cordons", err)
	leasesReadAt := s.now() // before it: a lease that is written meanwhile is younger
	leases, err := s.state.Leases()
	s.report("leases", err)
	if err != nil {
		leasesReadAt = time.Time{}
	}
	live, recent, reservationsErr := s.reservations.Look(leases, s.now())
	s.report("reservations", reservationsErr)
	now := plan.Inputs{
		Holders: occupancy.Merge(live, occupancy.Holders(occupancy.LiveAfter(leases, s.now()))),
		Recent:  occupancy.Merge(recent, occupancy.Holders(occupancy.LiveAfter(leases, s.now().Add(-s.config.ModeChangeDelay)))),
		Busy:    map[string]bool{},
		Cordons: cordons,
		Faults:  map[string][]gpu.Fault{},

		Tasks:        occupancy.TasksOn(occupancy.LiveAfter(leases, s.now())),
		Leases:       leases,
		LeasesReadAt: leasesReadAt,
	}
	for _, uuid := range s.registry.GPUs() {
		now.Faults[uuid] = s.health.Faults(uuid)
	}
	for _, g := range machine.GPUs {
		now.Faults[g.UUID] = s.health.Faults(g.UUID)
		for _, i := range g.Partitions {
			now.Faults[i.UUID] = s.health.Faults(i.UUID)
		}
		if err != nil {
			now.Busy[g.UUID] = true // what is held is not known
		} else if s.changing(g) {
			s.findBusy(g, now.Busy)
		}
	}
	return now
}

// changing reports whether a GPU is to be offered in another way than before.
func (s *inputSource) changing(g hardware.GPU) bool {
	known := s.registry.Records[g.UUID]
	if known == nil || known.Sharing == (config.Sharing{}) {
		return false
	}
	rule := s.config.RuleFor(g, known.Index)
	if !known.Sharing.Same(rule.Sharing) || plan.LayoutCordon(rule, g, true) != "" {
		return true
	}
	return slices.ContainsFunc(g.Partitions, func(i hardware.Partition) bool {
		known := s.registry.Records[i.UUID]
		return known != nil && known.Sharing != config.Sharing{} && !known.Sharing.Same(rule.SharingOfInstance(i.Profile))
	})
}

// findBusy marks a GPU and its MIG instances that have processes, or that do
// not tell.
func (s *inputSource) findBusy(g hardware.GPU, busy map[string]bool) {
	uuids := []string{g.UUID}
	for _, i := range g.Partitions {
		uuids = append(uuids, i.UUID)
	}
	for _, uuid := range uuids {
		processes, err := s.observer.Processes(g.UUID, uuid)
		if err != nil || slices.ContainsFunc(processes, func(p hardware.Process) bool { return !s.server(p.PID) }) {
			busy[uuid] = true
		}
	}
}
