// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
)

// probes tries devices that may have recovered, each in the background, one attempt
// at a time and with a pause after it.
type probes struct {
	log      hclog.Logger
	report   func(what string, err error)
	health   *health.Tracker
	registry *registry.Registry
	cordons  registry.Flags
	observer fleet.Observer
	prober   fleet.Prober
	// server tells the processes of MPS daemons; startOf tells when a process of the host
	// began, and whether it runs.
	server  func(pid int) bool
	startOf func(pid int) (time.Time, bool)
	now     func() time.Time
	pause   time.Duration

	outcomes chan outcome
	running  map[string]bool
	ended    map[string]time.Time
	going    sync.WaitGroup
}

// outcome is that of one probe.
type outcome struct {
	uuid string
	err  error
}

// start tries something for the device that may have recovered, unless a probe for
// it is under way or ended a moment ago.
func (p *probes) start(ctx context.Context, uuid string, what hardware.ProbeTarget) {
	if p.running[uuid] || p.now().Sub(p.ended[uuid]) < p.pause {
		return
	}
	p.running[uuid] = true
	p.going.Go(func() {
		err := p.prober.Probe(what)
		select {
		case p.outcomes <- outcome{uuid, err}:
		case <-ctx.Done():
		}
	})
}

// wait returns when no probe is under way.
func (p *probes) wait() { p.going.Wait() }

// probeAll tries the devices that may have recovered, where a probe can tell. An
// outcome makes a pass of its own.
func (p *probes) probeAll(ctx context.Context, units []*plan.Unit) {
	for _, uuid := range p.health.Suspects() {
		known := p.registry.Records[uuid]
		what := hardware.ProbeTarget{Owner: uuid, UUID: uuid}
		switch {
		case known == nil:
		case known.Parent != "":
			what.Owner = known.Parent
		case known.Hardware != nil && len(known.Hardware.Partitions) > 0:
			what.UUID = known.Hardware.Partitions[0].UUID // a GPU with MIG runs nothing itself
		}
		if why := p.cannotJudge(uuid, what.Owner); why != nil {
			p.report("probe of "+uuid, why)
			continue
		}
		for _, u := range units {
			// Where every client needs a partition or a namespace the probe runs beside MPS.
			if u.UUID == what.UUID && u.MPS != nil && u.MPS.Ready && u.MPS.Partitioning == nil && !u.MPS.HasNamespaces() {
				what.PipeDir, what.LogDir, what.ShmDir = u.MPS.GateFiles(), u.MPS.LogDir, u.MPS.ShmDir
			}
		}
		p.start(ctx, uuid, what)
	}
}

// cannotJudge says why a program that works would not show that a device's faults
// are over.
func (p *probes) cannotJudge(uuid, owner string) error {
	faults := p.health.Latched(uuid)
	if known := p.registry.Records[owner]; known != nil && known.Hardware != nil && slices.ContainsFunc(faults, p.health.OfLink) {
		if now := known.Hardware.Links.Total(); now < known.Links {
			return fmt.Errorf("%d of its %d links are down", known.Links-now, known.Links)
		}
	}
	for _, f := range faults {
		if !f.Fatal {
			continue
		}
		// Until they end the reset that such a fault needs cannot have been done.
		processes, err := p.observer.Processes(owner, uuid)
		if err != nil {
			return fmt.Errorf("its processes are not known: %w", err)
		}
		for _, process := range processes {
			if started, running := p.startOf(process.PID); running && started.Before(f.Since) && !p.server(process.PID) {
				return fmt.Errorf("%s is on it since before %s", occupancy.ProgramText(process.PID), f.Code)
			}
		}
	}
	return nil
}

// A device that fails so often within so long is cordoned until a person has looked.
const (
	flapCount  = 3
	flapPeriod = time.Hour
)

// onOutcome takes note of a probe: a device that works is healthy again.
func (p *probes) onOutcome(o outcome) {
	delete(p.running, o.uuid)
	p.ended[o.uuid] = p.now()
	p.report("probe of "+o.uuid, o.err)
	if o.err != nil || !p.health.Cleared(o.uuid, p.now()) {
		return
	}
	p.log.Info("the GPU works again", "gpu", o.uuid)
	if p.health.Recoveries(o.uuid, p.now().Add(-flapPeriod)) >= flapCount && !p.cordons.Has(o.uuid) {
		p.report("cordon of "+o.uuid, p.cordons.Add(o.uuid,
			fmt.Sprintf("it failed and recovered %d times within an hour; look at it, then run nomad-device-gpu uncordon", flapCount)))
	}
}
