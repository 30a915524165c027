package device

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// reconciler keeps the node's GPUs in the state that the configuration wants, and
// what is published of them true. One goroutine reconciles; everything else
// reads the latest publication.
type reconciler struct {
	log      hclog.Logger
	logOnce  *onceLogger
	config   *config
	platform *platform
	now      func() time.Time
	// startOf tells when a process of the host began, and whether it runs.
	startOf func(pid int) (time.Time, bool)

	// What outlives the plugin: on disk, and in the state directory.
	registry     *deviceRegistry
	cordons      OperatorFlags
	forgotten    OperatorFlags
	releases     OperatorFlags
	reservations *reservations
	state        *statedir.Dir

	// What is known of the GPUs, and what is done to them.
	health     *healthTracker
	cuda       string // the CUDA version of the last survey
	listener   *eventListener
	probes     *probes
	mps        daemons
	cdi        *cdiSpecs
	timeslices timesliceHistory
	background *background
	faults     faultClock

	published *publisher
	// wake asks for another pass.
	wake trigger
	// outdated is called when only a new process can serve the driver; worked is set
	// once this one could.
	outdated func()
	worked   bool
	// unmatched compares the rules with the hardware once.
	unmatched sync.Once
}

// run reconciles until the context ends.
func (r *reconciler) run(ctx context.Context) {
	defer r.probes.wait()
	defer r.background.wait()
	defer r.listener.stop()
	tick := time.NewTicker(min(r.config.period, r.config.health.interval))
	defer tick.Stop()
	for {
		r.reconcile(ctx)
		select {
		case <-ctx.Done():
			return
		case event := <-r.listener.events:
			r.onEvent(event)
		case o := <-r.probes.outcomes:
			r.onProbe(o)
		case <-r.wake:
		case <-tick.C:
		}
	}
}

// reconcile looks at everything once, brings it closer to what is wanted, and
// publishes what it found.
func (r *reconciler) reconcile(ctx context.Context) {
	machine, err := r.platform.observer.Survey()
	r.logOnce.report("survey", err)
	if err == nil {
		r.cuda = machine.CUDAVersion
		machine = r.registry.complete(machine)
	}
	r.checkDriver(err)
	r.observe(machine, err)
	r.listener.watch(ctx, machine)
	r.forget(machine, err)
	inputs := r.gatherInputs(machine)
	units := plan(r.config, r.registry, machine, inputs)
	r.logOnce.report("device registry", r.registry.save())
	if len(machine.GPUs) > 0 {
		r.unmatched.Do(func() {
			for _, w := range r.config.unmatched(machine.GPUs, r.registry) {
				r.log.Warn("configuration", "warning", w)
			}
		})
	}
	r.release(units)
	r.prepareSharing(units, inputs)
	r.writeStates(units)
	if !r.published.early(units, r.now(), r.wake) {
		r.published.publish(traitsOf(machine, units), units)
	}
	r.probe(ctx, units)
}

// checkDriver finds a driver that was upgraded under the plugin: a process keeps the
// library that it loaded. One that never worked would find the same again.
func (r *reconciler) checkDriver(surveyErr error) {
	r.worked = r.worked || surveyErr == nil
	if r.worked && (errors.Is(surveyErr, nvidia.ErrMismatch) || r.platform.observer.Replaced()) {
		r.log.Warn("the driver was changed under the plugin, which ends to be started anew")
		r.outdated()
	}
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
