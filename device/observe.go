// SPDX-License-Identifier: MPL-2.0

package device

import (
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
)

// observations enters surveys and events of GPUs: in the health tracker, and in the
// registry where an operator wants one forgotten.
type observations struct {
	log       hclog.Logger
	report    func(what string, err error)
	health    *health.Tracker
	registry  *registry.Registry
	forgotten registry.Flags
	now       func() time.Time
}

// observe tells the health tracker how each known GPU is. When nothing could be seen of
// a vendor's, every one that was there is in trouble.
func (o *observations) observe(machine hardware.Machine) {
	seen := map[string]bool{}
	now := o.now()
	for _, g := range machine.GPUs {
		seen[g.UUID] = true
		o.health.Survey(g.UUID, g.Problems, now)
		for _, i := range g.Partitions {
			o.health.Survey(i.UUID, i.Problems, now)
		}
	}
	for _, uuid := range o.registry.GPUs() {
		if !seen[uuid] {
			o.health.Survey(uuid, []hardware.Problem{absence(machine.Drivers[o.registry.Records[uuid].Hardware.Vendor])}, now)
		}
	}
}

// forget drops the GPUs that an operator has marked and that are not there, once a
// survey has seen every GPU of the vendor that is. Their indices stay taken.
func (o *observations) forget(machine hardware.Machine) {
	marked, err := o.forgotten.All()
	o.report("forgotten", err)
	for uuid := range marked {
		here := slices.ContainsFunc(machine.GPUs, func(g hardware.GPU) bool { return g.UUID == uuid })
		known := o.registry.Records[uuid]
		if known != nil && known.Hardware != nil {
			if d := machine.Drivers[known.Hardware.Vendor]; d.Absent != nil || len(d.Unknown) > 0 {
				continue // it may be one of those that were not seen
			}
		}
		if known != nil && !here {
			o.log.Info("forgetting a GPU", "gpu", uuid)
			known.Hardware = nil
		}
		o.report("forgotten", o.forgotten.Remove(uuid))
	}
}

// absence says why a GPU that the node once had is not seen.
func absence(d hardware.Driver) hardware.Problem {
	switch {
	case d.Absent != nil:
		return *d.Absent
	case len(d.Unknown) > 0:
		return d.Unknown[0]
	default:
		return hardware.Problem{Code: hardware.CodeMissing, Fatal: true, Message: "the GPU is not found in this machine",
			Action: "check the hardware; after it was replaced for good, run nomad-device-gpu forget UUID"}
	}
}

// onEvent takes note of an event; one without a device concerns every GPU, one of
// a MIG instance that instance alone. The pass that follows sees the rest.
func (o *observations) onEvent(event hardware.Event) {
	uuids := []string{event.UUID}
	if event.UUID == "" {
		uuids = slices.DeleteFunc(o.registry.GPUs(), func(uuid string) bool { return o.registry.Records[uuid].Hardware.Vendor != event.Vendor })
	}
	for _, uuid := range uuids {
		if event.XID == 0 {
			o.log.Warn("the driver reported an event", "gpu", uuid, "event", event.Name)
			o.health.Event(uuid, event.Problem, o.now())
			continue
		}
		o.health.NoteXID(uuid, event.XID)
		// A GPU that is gone is gone with all its instances.
		if instance := o.registry.Instance(uuid, event.GI, event.CI); instance != "" && o.health.Class(event.XID) != health.Lost {
			uuid = instance
		}
		class := o.health.XID(uuid, event.XID, o.now())
		o.log.Warn("the driver reported an XID", "device", uuid, "xid", event.XID, "class", class.String())
	}
}
