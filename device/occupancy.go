package device

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// circumstances gathers what the plan depends on.
func (e *engine) circumstances(machine hardware.Machine) circumstances {
	cordons, err := e.cordons.All()
	e.complain("cordons", err)
	e.looked = e.now() // before it: a lease that is written meanwhile is younger
	leases, err := e.state.Leases()
	e.complain("leases", err)
	if err != nil {
		e.looked = time.Time{}
	}
	live, recent, reservationsErr := e.reservations.look(leases, e.now())
	e.complain("reservations", reservationsErr)
	now := circumstances{
		holders: merge(live, holders(liveAfter(leases, e.now()))),
		recent:  merge(recent, holders(liveAfter(leases, e.now().Add(-e.config.modeChangeDelay)))),
		busy:    map[string]bool{},
		cordons: cordons,
		faults:  map[string][]gpu.Fault{},
	}
	for _, uuid := range e.ledger.gpus() {
		now.faults[uuid] = e.tracker.faults(uuid)
	}
	for _, g := range machine.GPUs {
		now.faults[g.UUID] = e.tracker.faults(g.UUID)
		for _, i := range g.Instances {
			now.faults[i.UUID] = e.tracker.faults(i.UUID)
		}
		if err != nil {
			now.busy[g.UUID] = true // what is held is not known
		} else if e.changing(g) {
			e.findBusy(g, now.busy)
		}
	}
	return now
}

// changing reports whether a GPU is to be offered in another way than before.
func (e *engine) changing(g hardware.GPU) bool {
	r := e.ledger.records[g.UUID]
	if r == nil || r.Offer == (offer{}) {
		return false
	}
	rule := e.config.ruleFor(g, r.Index)
	if !r.Offer.same(rule.offer) || layoutCordon(rule, g, true) != "" {
		return true
	}
	return slices.ContainsFunc(g.Instances, func(i hardware.Instance) bool {
		r := e.ledger.records[i.UUID]
		return r != nil && r.Offer != offer{} && !r.Offer.same(rule.offerInstance(i.Profile))
	})
}

// findBusy marks a GPU and its MIG instances that have processes, or that do
// not tell.
func (e *engine) findBusy(g hardware.GPU, busy map[string]bool) {
	uuids := []string{g.UUID}
	for _, i := range g.Instances {
		uuids = append(uuids, i.UUID)
	}
	for _, uuid := range uuids {
		processes, err := e.platform.observer.Processes(g.UUID, uuid)
		if err != nil || slices.ContainsFunc(processes, func(p hardware.Process) bool { return !e.mps.Server(p.PID) }) {
			busy[uuid] = true
		}
	}
}

// liveAfter leaves the leases that are live, or ended only after the given
// moment. With the present for the moment, those are the live ones.
func liveAfter(leases []gpu.Lease, moment time.Time) []gpu.Lease {
	return slices.DeleteFunc(slices.Clone(leases), func(l gpu.Lease) bool { return !l.Live() && !l.EndedAt.After(moment) })
}

// holders sums up what leases hold.
func holders(leases []gpu.Lease) map[string]holder {
	all := map[string]holder{}
	for _, l := range leases {
		for _, h := range l.Holdings {
			hold(all, h.UUID, h.Slices)
		}
	}
	return all
}
