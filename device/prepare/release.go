// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"cmp"
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
)

// release lets go of the GPUs that an operator has flagged: once no task and no
// program is on one, its MPS daemon ends, the plugin holds it open no more, it is
// reset if that is asked for, tried, and takes work again. Until then it is
// cordoned. What fails is said by a cordon that stays.
func (p *Preparer) release(units []*plan.Unit) {
	flagged, err := p.Releases.All()
	p.Report("releases", err)
	for uuid, what := range flagged {
		waits := ""
		for _, u := range units {
			if u.Owner() != uuid {
				continue
			}
			if u.Cordon == "" {
				u.Cordon = "it is being released"
			}
			if waits == "" {
				waits = p.holdsOn(u)
			}
		}
		for _, u := range units {
			u.Released = u.Released || u.Owner() == uuid && waits == ""
		}
		if waits != "" || p.serverOn(uuid) {
			p.Report("release of "+uuid, fmt.Errorf("waits for %s", cmp.Or(waits, "its MPS daemon to end")))
			continue
		}
		p.Report("release of "+uuid, nil)
		done, err := p.background.do("release "+uuid, what, retryInterval, func() error { return p.letGo(uuid, what == registry.ReleaseReset) })
		switch {
		case err != nil:
			p.Report("cordon of "+uuid, p.Cordons.Add(uuid, "its release failed: "+err.Error()))
			fallthrough
		case done:
			p.background.forget("release " + uuid)
			p.Report("releases", p.Releases.Remove(uuid))
		}
	}
}

// holdsOn lists the processes on a device besides MPS servers; empty if there are none.
func (p *Preparer) holdsOn(u *plan.Unit) string {
	if u.HeldAll || len(u.Held) > 0 {
		return "its tasks to end"
	}
	processes, err := p.Platform.Observer.Processes(u.Owner(), u.UUID)
	if err != nil {
		return "the driver to tell who is on it"
	}
	for _, process := range processes {
		if !p.Daemons.Server(process.PID) {
			return occupancy.ProgramText(process.PID) + " to end"
		}
	}
	return ""
}

// serverOn reports whether an MPS server is on a GPU still.
func (p *Preparer) serverOn(uuid string) bool {
	processes, err := p.Platform.Observer.Processes(uuid, uuid)
	return err != nil || len(processes) > 0
}

// letGo resets a GPU while the plugin does not hold it open. Whether it works then
// is found by the probe that every fault waits for.
func (p *Preparer) letGo(uuid string, reset bool) error {
	return p.Platform.Observer.Release(uuid, func() error {
		if !reset {
			return nil
		}
		return p.Platform.Resetter.Reset(uuid)
	})
}
