// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// timesliceHistory are the GPUs whose time slices this plugin has set.
type timesliceHistory map[string]bool

// prepareTimeslices sets the length of the time slices of GPUs that tasks share
// in time, and verifies it. The length belongs to the whole GPU, so a MIG
// instance has none of its own.
func (p *Preparer) prepareTimeslices(units []*plan.Unit) {
	for _, u := range units {
		if u.Sharing.Mechanism != gpu.SharingTimeslice || !config.Vendors[u.GPU.Vendor].Levels || u.Instance != nil || u.GPU.Model == "" {
			continue
		}
		level := u.Sharing.Timeslice
		if level == "default" && !p.timeslices[u.UUID] {
			continue // what no one has changed need not be set
		}
		p.timeslices[u.UUID] = true
		done, err := p.background.do("timeslice "+u.UUID, level, retryInterval, func() error { return p.setTimeslice(u.UUID, level) })
		if done {
			u.Timeslice = level
			continue
		}
		if err != nil {
			p.faults.add(u, gpu.Fault{Code: "timeslice-not-set", Message: fmt.Sprintf("the time-slice length %q could not be set: %s", level, err),
				Action: "check nvidia_smi in the plugin's configuration; it is tried again every minute"})
		} else {
			p.faults.add(u, gpu.Fault{Code: "timeslice-not-set", Message: fmt.Sprintf("the time-slice length is being set to %q", level),
				Action: "wait a moment"})
		}
	}
}

// setTimeslice changes the length where it is another, and reads it back.
func (p *Preparer) setTimeslice(uuid, level string) error {
	t := p.Platform.Timeslicer
	now, err := t.Timeslice(uuid)
	if err != nil {
		return err
	}
	if now == level {
		return nil
	}
	if err := t.SetTimeslice(uuid, level); err != nil {
		return err
	}
	now, err = t.Timeslice(uuid)
	if err == nil && now != level {
		err = fmt.Errorf("it is %q after it was set", now)
	}
	return err
}
