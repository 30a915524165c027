package device

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
)

// probes tries GPUs that may have recovered, each in the background, one attempt
// at a time and with a pause after it.
type probes struct {
	prober   fleet.Prober
	pause    time.Duration
	outcomes chan outcome

	running map[string]bool
	ended   map[string]time.Time
	going   sync.WaitGroup
}

// outcome is that of one probe.
type outcome struct {
	uuid string
	err  error
}

func newProbes(p fleet.Prober, pause time.Duration) *probes {
	return &probes{prober: p, pause: pause, outcomes: make(chan outcome), running: map[string]bool{}, ended: map[string]time.Time{}}
}

// start tries something for the device that may have recovered, unless a probe for
// it is under way or ended a moment ago.
func (p *probes) start(ctx context.Context, uuid string, what hardware.ProbeTarget, now time.Time) {
	if p.running[uuid] || now.Sub(p.ended[uuid]) < p.pause {
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

// note enters that a probe has ended.
func (p *probes) note(uuid string, now time.Time) {
	delete(p.running, uuid)
	p.ended[uuid] = now
}

// wait returns when no probe is under way.
func (p *probes) wait() { p.going.Wait() }

// probe tries the devices that may have recovered, and of which a probe can tell.
// An outcome makes a pass of its own.
func (r *reconciler) probe(ctx context.Context, units []*plan.Unit) {
	for _, uuid := range r.health.Suspects() {
		known := r.registry.Records[uuid]
		what := hardware.ProbeTarget{Owner: uuid, UUID: uuid}
		switch {
		case known == nil:
		case known.Parent != "":
			what.Owner = known.Parent
		case known.Hardware != nil && len(known.Hardware.Partitions) > 0:
			what.UUID = known.Hardware.Partitions[0].UUID // a GPU with MIG runs nothing itself
		}
		if why := r.cannotJudge(uuid, what.Owner); why != nil {
			r.logOnce.report("probe of "+uuid, why)
			continue
		}
		for _, u := range units {
			// Where every client needs a partition the probe runs beside MPS.
			if u.UUID == what.UUID && u.MPS != nil && u.MPS.Ready && u.MPS.Partitioning == nil {
				what.PipeDir, what.LogDir, what.ShmDir = u.MPS.PipeDir, u.MPS.LogDir, u.MPS.ShmDir
			}
		}
		r.probes.start(ctx, uuid, what, r.now())
	}
}

// cannotJudge says why a program that works would not show that a device's faults
// are over.
func (r *reconciler) cannotJudge(uuid, owner string) error {
	faults := r.health.Latched(uuid)
	if known := r.registry.Records[owner]; known != nil && known.Hardware != nil && slices.ContainsFunc(faults, r.health.OfLink) {
		if now := known.Hardware.Links.Total(); now < known.Links {
			return fmt.Errorf("%d of its %d links are down", known.Links-now, known.Links)
		}
	}
	for _, f := range faults {
		if !f.Fatal {
			continue
		}
		// Until they end the reset that such a fault needs cannot have been done.
		processes, err := r.platform.Observer.Processes(owner, uuid)
		if err != nil {
			return fmt.Errorf("its processes are not known: %w", err)
		}
		for _, p := range processes {
			if started, running := r.startOf(p.PID); running && started.Before(f.Since) && !r.mps.Server(p.PID) {
				return fmt.Errorf("process %d is on it since before %s", p.PID, f.Code)
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

// onProbe takes note of a probe: a device that works is healthy again.
func (r *reconciler) onProbe(o outcome) {
	r.probes.note(o.uuid, r.now())
	r.logOnce.report("probe of "+o.uuid, o.err)
	if o.err != nil || !r.health.Cleared(o.uuid, r.now()) {
		return
	}
	r.log.Info("the GPU works again", "gpu", o.uuid)
	if r.health.Recoveries(o.uuid, r.now().Add(-flapPeriod)) >= flapCount && !r.cordons.Has(o.uuid) {
		r.logOnce.report("cordon of "+o.uuid, r.cordons.Add(o.uuid,
			fmt.Sprintf("it failed and recovered %d times within an hour; look at it, then run nomad-device-gpu uncordon", flapCount)))
	}
}
