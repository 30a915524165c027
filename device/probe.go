package device

import (
	"context"
	"sync"
	"time"
)

// probes tries GPUs that may have recovered, each in the background, one attempt
// at a time and with a pause after it.
type probes struct {
	prober   prober
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

func newProbes(p prober, pause time.Duration) *probes {
	return &probes{prober: p, pause: pause, outcomes: make(chan outcome), running: map[string]bool{}, ended: map[string]time.Time{}}
}

// start tries target, of the GPU owner, for the device that may have recovered,
// unless a probe of that is under way or ended a moment ago.
func (p *probes) start(ctx context.Context, uuid, owner, target string, now time.Time) {
	if p.running[uuid] || now.Sub(p.ended[uuid]) < p.pause {
		return
	}
	p.running[uuid] = true
	p.going.Go(func() {
		err := p.prober.Probe(owner, target)
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

// probe tries the devices that may have recovered. An outcome makes a pass of its
// own.
func (r *reconciler) probe(ctx context.Context) {
	for _, uuid := range r.health.suspects() {
		known := r.registry.records[uuid]
		owner, target := uuid, uuid
		switch {
		case known == nil:
		case known.Parent != "":
			owner = known.Parent
		case known.Hardware != nil && len(known.Hardware.Instances) > 0:
			target = known.Hardware.Instances[0].UUID // a GPU with MIG runs nothing itself
		}
		r.probes.start(ctx, uuid, owner, target, r.now())
	}
}

// onProbe takes note of a probe: a GPU that works is healthy again.
func (r *reconciler) onProbe(o outcome) {
	r.probes.note(o.uuid, r.now())
	r.logOnce.report("probe of "+o.uuid, o.err)
	if o.err == nil && r.health.cleared(o.uuid) {
		r.log.Info("the GPU works again", "gpu", o.uuid)
	}
}
