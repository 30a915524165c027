package device

import (
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// equip gives the units what their tasks need: CDI names, MPS daemons, HAMi-core
// and time slices. What fails is a fault of that unit only.
func (e *engine) equip(units []*unit) {
	e.sinceNext = map[string]time.Time{}
	var uuids []string
	for _, u := range units {
		if u.offered() {
			uuids = append(uuids, u.uuid)
		}
	}
	names, missing := e.names.resolve(uuids)
	if len(missing) > 0 {
		_, err := e.chores.do("cdi", strings.Join(missing, " "), chorePause, e.names.generate)
		e.complain("cdi", err)
		for _, u := range units {
			u.unsettled = err == nil && slices.Contains(missing, u.uuid)
		}
	}
	for _, u := range units {
		u.cdi = names[u.uuid]
	}
	e.equipHAMi(units)
	e.equipMPS(units)
	e.equipTimeslices(units)
	e.layOut(units)
	for _, u := range units {
		e.checkComputeMode(u)
	}
	e.since = e.sinceNext
}

// checkComputeMode finds GPUs whose compute mode lets only one program in.
func (e *engine) checkComputeMode(u *unit) {
	if u.gpu.Exclusive && u.sharedFlag() && u.offer.Sharing != gpu.SharingMPS {
		u.fault(gpu.Fault{Code: "compute-mode", Message: "the GPU's compute mode is not Default, so that only one program can use it",
			Action: "run nvidia-smi -i " + u.owner() + " -c DEFAULT"}, e)
	}
}

// writeStates publishes the units to the task driver.
func (e *engine) writeStates(units []*unit) {
	written := map[string]bool{}
	for _, u := range units {
		written[u.uuid] = true
		e.complain("state of "+u.uuid, e.state.WriteGPU(u.state()))
	}
	old, err := e.state.GPUs()
	e.complain("states", err)
	for _, s := range old {
		if !written[s.UUID] {
			e.complain("state of "+s.UUID, e.state.RemoveGPU(s.UUID))
		}
	}
}
