package device

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// engine keeps the node's GPUs in the state that the configuration wants, and
// what is published of them true. One goroutine turns it over; everything else
// reads the latest publication.
type engine struct {
	log                hclog.Logger
	config             *config
	platform           *platform
	ledger             *ledger
	cordons, forgotten Marks
	state              *statedir.Dir
	reservations       *reservations
	names              *cdiNames
	tracker            *tracker
	mps                daemons
	// looked is when the leases were read; zero if that failed.
	looked time.Time
	// cuda is the CUDA version of the last survey.
	cuda string
	now  func() time.Time

	events   chan hardware.Event
	wake     chan struct{}
	outcomes chan outcome
	// probing are the GPUs that a probe is out for, probed is when the last ended.
	probing map[string]bool
	probed  map[string]time.Time

	latest  atomic.Pointer[publication]
	mu      sync.Mutex
	changed chan struct{}

	meter  *meter
	chores *chores
	// everSet are the GPUs whose time slices this plugin has set; since and
	// sinceNext hold when faults of units began, of the turn before and of this.
	everSet          map[string]bool
	since, sinceNext map[string]time.Time
	xids             sync.Map // UUID to the last XID, for metrics
	// began and firstTimer are for the first publication.
	began      time.Time
	firstTimer sync.Once
	// metricsAddress is where metrics are served, empty if they are not.
	metricsAddress string
	// warned is set once the rules were compared with the hardware.
	warned bool
	// complaining guards complained: the meter runs beside the engine.
	complaining sync.Mutex
	complained  map[string]string
	watching    watch
	background  sync.WaitGroup
}

// publication is one turn's outcome. It is never changed after it was made.
type publication struct {
	groups    []*device.DeviceGroup
	units     []*unit
	catalogue catalogue
}

// run turns the engine over until the context ends.
func (e *engine) run(ctx context.Context) {
	defer e.background.Wait()
	defer e.chores.wait()
	defer e.watching.stop()
	tick := time.NewTicker(min(e.config.period, e.config.health.interval))
	defer tick.Stop()
	for {
		e.turn(ctx)
		select {
		case <-ctx.Done():
			return
		case event := <-e.events:
			e.hear(event)
		case o := <-e.outcomes:
			e.settle(o)
		case <-e.wake:
		case <-tick.C:
		}
	}
}

// nudge asks for a turn soon.
func (e *engine) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// turn looks at everything once and publishes what it found.
func (e *engine) turn(ctx context.Context) {
	machine, err := e.platform.observer.Survey()
	e.complain("survey", err)
	if err == nil {
		e.cuda = machine.CUDAVersion
		machine = e.ledger.complete(machine)
	}
	e.observe(machine, err)
	e.watch(ctx, machine)
	e.forget(machine, err)
	now := e.circumstances(machine)
	units := plan(e.config, e.ledger, machine, now)
	e.complain("ledger", e.ledger.save())
	if len(machine.GPUs) > 0 && !e.warned {
		e.warned = true
		for _, w := range e.config.unmatched(machine.GPUs, e.ledger) {
			e.log.Warn("configuration", "warning", w)
		}
	}
	e.equip(units)
	e.writeStates(units)
	if !e.early(units) {
		e.publish(versions{machine.DriverVersion, machine.CUDAVersion}, units)
	}
	e.probe(ctx)
}

// firstWait is how long the first publication waits for MPS daemons, so that a
// restart of the plugin does not make slices unhealthy for a moment: Nomad would
// take that for a change of the node.
const firstWait = 3 * time.Second

// early reports whether it is better to wait with the first publication.
func (e *engine) early(units []*unit) bool {
	if e.latest.Load() != nil || e.now().Sub(e.began) >= firstWait {
		return false
	}
	waiting := slices.ContainsFunc(units, func(u *unit) bool { return u.unsettled })
	if waiting {
		e.firstTimer.Do(func() { time.AfterFunc(firstWait, e.nudge) })
	}
	return waiting
}

// publish makes the units visible to Reserve, Stats and Fingerprint, and wakes
// the latter if Nomad would see a difference.
func (e *engine) publish(v versions, units []*unit) {
	next := &publication{groups: buildGroups(v, units), units: units, catalogue: newCatalogue(units)}
	previous := e.latest.Load()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.latest.Store(next)
	if previous != nil && sameGroups(previous.groups, next.groups) {
		return
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// current returns the latest publication, nil before the first, and a channel
// that is closed when there is another.
func (e *engine) current() (*publication, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.latest.Load(), e.changed
}

// complain logs a failure when it begins, when it changes and when it ends.
func (e *engine) complain(what string, err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
	e.complaining.Lock()
	defer e.complaining.Unlock()
	if e.complained[what] == text {
		return
	}
	e.complained[what] = text
	if text == "" {
		e.log.Info("recovered", "from", what)
		return
	}
	e.log.Error("cannot go on with this, trying again", "what", what, "error", text)
}
