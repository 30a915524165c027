// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/prepare"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// reconciler keeps the node's GPUs in the state that the configuration wants, and
// their publication true. One goroutine reconciles; everything else reads the
// latest publication.
type reconciler struct {
	log      hclog.Logger
	logOnce  *onceLogger
	config   *config.Config
	platform *fleet.Platform
	now      func() time.Time

	registry     *registry.Registry
	reservations *occupancy.Reservations
	state        *statedir.Dir
	health       *health.Tracker
	mps          *mps.Supervisor

	listener     *eventListener
	observations *observations
	probes       *probes
	inputs       *inputSource
	preparer     *prepare.Preparer
	published    *publisher

	// worked names the vendors whose driver this process could use.
	worked map[string]bool
	// wake asks for another pass.
	wake trigger
	// outdated is called when only a new process can serve a driver.
	outdated func()
	// warned compares the rules with the hardware once.
	warned sync.Once
}

// run reconciles until the context ends.
func (r *reconciler) run(ctx context.Context) {
	defer r.probes.wait()
	defer r.preparer.Wait()
	defer r.listener.stop()
	tick := time.NewTicker(min(r.config.Period, r.config.Health.Interval))
	defer tick.Stop()
	for {
		r.reconcile(ctx)
		select {
		case <-ctx.Done():
			return
		case event := <-r.listener.events:
			r.observations.onEvent(event)
			if event.XID != 0 {
				r.mps.Ask() // a program's fault may be over, and its victims gone, before the next question
			}
		case o := <-r.probes.outcomes:
			r.probes.onOutcome(o)
		case <-r.wake:
		case <-tick.C:
		}
	}
}

// reconcile looks at everything once, brings it closer to the wanted state, and
// publishes the result.
func (r *reconciler) reconcile(ctx context.Context) {
	machine := r.registry.Complete(r.platform.Observer.Survey())
	r.checkDrivers(machine)
	r.observations.observe(machine)
	r.listener.watch(ctx, machine)
	r.observations.forget(machine)
	r.published.settled()
	inputs := r.inputs.gather(machine)
	units := plan.Units(r.config, r.registry, machine, inputs)
	r.logOnce.report("device registry", r.registry.Save())
	if len(machine.GPUs) > 0 && r.registry.Knows(machine.GPUs) {
		r.warned.Do(func() {
			for _, w := range plan.Warnings(r.config, units, machine, r.registry) {
				r.log.Warn("configuration", "warning", w)
			}
		})
	}
	r.preparer.Prepare(units, machine, inputs)
	for _, u := range units {
		if u.Instance == nil && u.Demand != nil && u.Demand.Doing == "" {
			r.registry.Prune(u.UUID, u.GPU.Partitions)
		}
	}
	r.writeStates(units)
	if !r.published.early(units, r.now(), r.wake.pull) {
		r.published.publish(plan.TraitsOf(machine, units), units)
	}
	r.probes.probeAll(ctx, units)
}

// writeStates publishes the units to the task driver.
func (r *reconciler) writeStates(units []*plan.Unit) {
	written := map[string]bool{}
	for _, u := range units {
		written[u.UUID] = true
		r.logOnce.report("state of "+u.UUID, r.state.WriteGPU(u.State()))
	}
	old, err := r.state.GPUs()
	r.logOnce.report("states", err)
	for _, s := range old {
		if !written[s.UUID] {
			r.logOnce.report("state of "+s.UUID, r.state.RemoveGPU(s.UUID))
		}
	}
}

// checkDrivers finds a driver that was upgraded under the plugin: a process keeps the
// library that it loaded. One that never worked would find the same again.
func (r *reconciler) checkDrivers(machine hardware.Machine) {
	for vendor, d := range machine.Drivers {
		r.worked[vendor] = r.worked[vendor] || d.Absent == nil
		r.reportAbsence(vendor, d, len(machine.GPUs) > 0)
		if r.worked[vendor] && d.Outdated {
			r.log.Warn("the driver was changed under the plugin, which ends to be started anew", "vendor", vendor)
			r.outdated()
		}
	}
}

// reportAbsence logs that a vendor's driver is not there, unless the node has nothing
// of that vendor and something of another.
func (r *reconciler) reportAbsence(vendor string, d hardware.Driver, others bool) {
	var err error
	if d.Absent != nil && (r.registry.HasVendor(vendor) || !others && !r.registry.HasVendor("")) {
		err = d.Err
	}
	r.logOnce.report("survey of "+vendor, err)
}

// trigger asks for something to be done soon, once however often it is pulled.
type trigger chan struct{}

func newTrigger() trigger { return make(trigger, 1) }

func (t trigger) pull() {
	select {
	case t <- struct{}{}:
	default:
	}
}
