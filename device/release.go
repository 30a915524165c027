package device

import (
	"cmp"
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
)

// release lets go of the GPUs that an operator has flagged: once no task and no
// program is on one, its MPS daemon ends, the plugin holds it open no more, it is
// reset if that is asked for, tried, and takes work again. Until then it is
// cordoned. What fails is said by a cordon that stays.
func (r *reconciler) release(units []*plan.Unit) {
	flagged, err := r.releases.All()
	r.logOnce.report("releases", err)
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
				waits = r.holdsOn(u)
			}
		}
		for _, u := range units {
			u.Released = u.Released || u.Owner() == uuid && waits == ""
		}
		if waits != "" || r.serverOn(uuid) {
			r.logOnce.report("release of "+uuid, fmt.Errorf("waits for %s", cmp.Or(waits, "its MPS daemon to end")))
			continue
		}
		r.logOnce.report("release of "+uuid, nil)
		done, err := r.background.do("release "+uuid, what, retryInterval, func() error { return r.letGo(uuid, what == registry.ReleaseReset) })
		switch {
		case err != nil:
			r.logOnce.report("cordon of "+uuid, r.cordons.Add(uuid, "its release failed: "+err.Error()))
			fallthrough
		case done:
			r.background.forget("release " + uuid)
			r.logOnce.report("releases", r.releases.Remove(uuid))
		}
	}
}

// holdsOn says what is on a device besides MPS servers; empty if nothing is.
func (r *reconciler) holdsOn(u *plan.Unit) string {
	if u.HeldAll || len(u.Held) > 0 {
		return "its tasks to end"
	}
	processes, err := r.platform.Observer.Processes(u.Owner(), u.UUID)
	if err != nil {
		return "the driver to tell who is on it"
	}
	for _, p := range processes {
		if !r.mps.Server(p.PID) {
			return fmt.Sprintf("process %d to end", p.PID)
		}
	}
	return ""
}

// serverOn reports whether an MPS server is on a GPU still.
func (r *reconciler) serverOn(uuid string) bool {
	processes, err := r.platform.Observer.Processes(uuid, uuid)
	return err != nil || len(processes) > 0
}

// letGo resets a GPU while the plugin does not hold it open. Whether it works then
// is found by the probe that every fault waits for.
func (r *reconciler) letGo(uuid string, reset bool) error {
	return r.platform.Observer.Release(uuid, func() error {
		if !reset {
			return nil
		}
		return r.platform.Resetter.Reset(uuid)
	})
}
