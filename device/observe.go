package device

import (
	"context"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// observe tells the tracker how each known GPU is. When nothing could be seen,
// every GPU that was there is in trouble.
func (e *engine) observe(machine hardware.Machine, surveyErr error) {
	seen := map[string]bool{}
	now := e.now()
	for _, g := range machine.GPUs {
		seen[g.UUID] = true
		e.tracker.survey(g.UUID, g.Problems, now)
		for _, i := range g.Instances {
			e.tracker.survey(i.UUID, i.Problems, now)
		}
	}
	for _, uuid := range e.ledger.gpus() {
		if !seen[uuid] {
			e.tracker.survey(uuid, []hardware.Problem{absence(surveyErr, machine.Unknown)}, now)
		}
	}
}

// forget drops the GPUs that an operator has marked and that are not there, once a
// survey has seen every GPU that is. Their indices stay taken.
func (e *engine) forget(machine hardware.Machine, surveyErr error) {
	if surveyErr != nil || len(machine.Unknown) > 0 {
		return
	}
	marked, err := e.forgotten.All()
	e.complain("forgotten", err)
	for uuid := range marked {
		here := slices.ContainsFunc(machine.GPUs, func(g hardware.GPU) bool { return g.UUID == uuid })
		if r := e.ledger.records[uuid]; r != nil && !here {
			e.log.Info("forgetting a GPU", "gpu", uuid)
			r.Hardware = nil
		}
		e.complain("forgotten", e.forgotten.Remove(uuid))
	}
}

// absence says why a GPU that the node once had is not seen.
func absence(surveyErr error, unknown []hardware.Problem) hardware.Problem {
	switch {
	case surveyErr != nil:
		return hardware.Problem{Code: "nvml-absent", Message: "NVML is not available",
			Action: "install or load the NVIDIA driver; it is healthy again when NVML answers"}
	case len(unknown) > 0:
		return unknown[0]
	default:
		return hardware.Problem{Code: hardware.CodeMissing, Message: "the GPU is not found in this machine",
			Action: "check the hardware; after it was replaced for good, run nomad-device-gpu forget UUID"}
	}
}

// hear takes note of an event; one without a device concerns every GPU. The turn
// that follows sees the rest.
func (e *engine) hear(event hardware.Event) {
	uuids := []string{event.UUID}
	if event.UUID == "" {
		uuids = e.ledger.gpus()
	}
	for _, uuid := range uuids {
		if event.XID == 0 {
			e.log.Warn("the driver reported an event", "gpu", uuid, "event", event.Name)
			e.tracker.event(uuid, event.Problem, e.now())
			continue
		}
		e.xids.Store(uuid, event.XID)
		class := e.tracker.xid(uuid, event.XID, e.now())
		e.log.Warn("the driver reported an XID", "gpu", uuid, "xid", event.XID, "class", class.String())
	}
}

// lastXID is the last XID that a GPU reported since the plugin started, or 0.
func (e *engine) lastXID(uuid string) uint64 {
	if n, ok := e.xids.Load(uuid); ok {
		return n.(uint64)
	}
	return 0
}

// probe tries the GPUs that may have recovered, each in the background, one
// attempt at a time and with a pause after it: an outcome makes a turn of its own.
func (e *engine) probe(ctx context.Context) {
	for _, uuid := range e.tracker.suspects() {
		if e.probing[uuid] || e.now().Sub(e.probed[uuid]) < e.config.health.interval/2 {
			continue
		}
		target := uuid
		if r := e.ledger.records[uuid]; r != nil && r.Hardware != nil && len(r.Hardware.Instances) > 0 {
			target = r.Hardware.Instances[0].UUID
		}
		e.probing[uuid] = true
		e.background.Add(1)
		go func() {
			defer e.background.Done()
			err := e.platform.prober.Probe(uuid, target)
			select {
			case e.outcomes <- outcome{uuid, err}:
			case <-ctx.Done():
			}
		}()
	}
}

// outcome is that of one probe.
type outcome struct {
	uuid string
	err  error
}

// settle takes note of a probe: a GPU that works is healthy again.
func (e *engine) settle(o outcome) {
	delete(e.probing, o.uuid)
	e.probed[o.uuid] = e.now()
	e.complain("probe of "+o.uuid, o.err)
	if o.err == nil && e.tracker.cleared(o.uuid) {
		e.log.Info("the GPU works again", "gpu", o.uuid)
	}
}
