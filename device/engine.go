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
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
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
	names              *cdiNames
	tracker            *tracker
	mps                daemons
	// cuda is the CUDA version of the last survey.
	cuda string
	now  func() time.Time

	events   chan hardware.Event
	wake     chan struct{}
	outcomes chan outcome
	probing  map[string]bool

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
	warned     bool
	complained map[string]string
	watching   watch
	background sync.WaitGroup
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
	}
	e.observe(machine, err)
	e.watch(ctx, machine)
	e.forget(machine)
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
	waiting := slices.ContainsFunc(units, func(u *unit) bool {
		return u.offer.Sharing == gpu.SharingMPS && !e.mps.Status(u.uuid).Settled
	})
	if waiting {
		e.firstTimer.Do(func() { time.AfterFunc(firstWait, e.nudge) })
	}
	return waiting
}

// observe tells the tracker how each known GPU is. When nothing could be seen,
// every GPU that was there is in trouble.
func (e *engine) observe(machine hardware.Machine, surveyErr error) {
	seen := map[string]bool{}
	now := e.now()
	for _, g := range machine.GPUs {
		seen[g.UUID] = true
		e.tracker.survey(g.UUID, g.Problems, now)
	}
	for _, uuid := range e.ledger.gpus() {
		if !seen[uuid] {
			e.tracker.survey(uuid, []hardware.Problem{absence(surveyErr, machine.Unknown)}, now)
		}
	}
}

// forget drops the GPUs that an operator has marked and that are not there. Their
// indices stay taken.
func (e *engine) forget(machine hardware.Machine) {
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
		return hardware.Problem{Code: "gpu-missing", Message: "the GPU is not found in this machine",
			Action: "check the hardware; after it was replaced for good, run nomad-device-gpu forget UUID"}
	}
}

// hear takes note of an event; one without a device concerns every GPU.
func (e *engine) hear(event hardware.Event) {
	uuids := []string{event.UUID}
	if event.UUID == "" {
		uuids = e.ledger.gpus()
	}
	for _, uuid := range uuids {
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

// circumstances gathers what the plan depends on.
func (e *engine) circumstances(machine hardware.Machine) circumstances {
	cordons, err := e.cordons.All()
	e.complain("cordons", err)
	leases, err := e.state.Leases()
	e.complain("leases", err)
	now := circumstances{
		holders: holders(leases, e.now().Add(-e.config.modeChangeDelay)),
		busy:    map[string]bool{},
		cordons: cordons,
		faults:  map[string][]gpu.Fault{},
	}
	for _, uuid := range e.ledger.gpus() {
		now.faults[uuid] = e.tracker.faults(uuid)
	}
	for _, g := range machine.GPUs {
		now.faults[g.UUID] = e.tracker.faults(g.UUID)
		if err != nil {
			now.busy[g.UUID] = true // what is held is not known
		} else if e.changing(g) {
			e.findBusy(g, now.busy)
		}
	}
	return now
}

// changing reports whether a GPU is to be offered in another way than before.
func (e *engine) changing(g hardware.GPU) bool {
	r := e.ledger.records[g.UUID]
	if r == nil || r.Offer == (offer{}) {
		return false
	}
	rule := e.config.ruleFor(g, r.Index)
	if !r.Offer.same(rule.offer) || layoutCordon(rule, g, true) != "" {
		return true
	}
	return slices.ContainsFunc(g.Instances, func(i hardware.Instance) bool {
		r := e.ledger.records[i.UUID]
		return r != nil && r.Offer != offer{} && !r.Offer.same(rule.offerInstance(i.Profile))
	})
}

// findBusy marks a GPU and its MIG instances that have processes, or that do
// not tell.
func (e *engine) findBusy(g hardware.GPU, busy map[string]bool) {
	uuids := []string{g.UUID}
	for _, i := range g.Instances {
		uuids = append(uuids, i.UUID)
	}
	for _, uuid := range uuids {
		processes, err := e.platform.observer.Processes(g.UUID, uuid)
		if err != nil || slices.ContainsFunc(processes, func(p hardware.Process) bool { return !e.mps.Server(p.PID) }) {
			busy[uuid] = true
		}
	}
}

// holders sums up what leases hold: the live ones, and those that ended after
// the given moment, whose tasks Nomad may restart in place.
func holders(leases []gpu.Lease, after time.Time) map[string]holder {
	all := map[string]holder{}
	for _, l := range leases {
		if !l.Live() && l.EndedAt.Before(after) {
			continue
		}
		for _, h := range l.Holdings {
			have := all[h.UUID]
			if len(h.Slices) == 0 {
				have.all = true
			}
			if have.slices == nil {
				have.slices = map[int]bool{}
			}
			for _, n := range h.Slices {
				have.slices[n] = true
			}
			all[h.UUID] = have
		}
	}
	return all
}

// equip gives the units what their tasks need: CDI names, MPS daemons, HAMi-core
// and time slices. What fails is a fault of that unit only.
func (e *engine) equip(units []*unit) {
	e.sinceNext = map[string]time.Time{}
	var uuids []string
	for _, u := range units {
		if u.offered() {
			uuids = append(uuids, u.uuid)
		}
	}
	names, err := e.names.resolve(uuids)
	e.complain("cdi", err)
	for _, u := range units {
		u.cdi = names[u.uuid]
		if u.offer.Sharing == gpu.SharingHAMi {
			u.hami = e.config.hami
		}
	}
	e.equipMPS(units)
	e.equipTimeslices(units)
	e.layOut(units)
	for _, u := range units {
		e.checkComputeMode(u)
	}
	e.since = e.sinceNext
}

// checkComputeMode finds GPUs whose compute mode lets only one program in.
func (e *engine) checkComputeMode(u *unit) {
	if u.gpu.Exclusive && u.sharedFlag() && u.offer.Sharing != gpu.SharingMPS {
		u.fault(gpu.Fault{Code: "compute-mode", Message: "the GPU's compute mode is not Default, so that only one program can use it",
			Action: "run nvidia-smi -i " + u.owner() + " -c DEFAULT"}, e)
	}
}

// writeStates publishes the units to the task driver.
func (e *engine) writeStates(units []*unit) {
	written := map[string]bool{}
	for _, u := range units {
		written[u.uuid] = true
		e.complain("state of "+u.uuid, e.state.WriteGPU(u.state()))
	}
	old, err := e.state.GPUs()
	e.complain("states", err)
	for _, s := range old {
		if !written[s.UUID] {
			e.complain("state of "+s.UUID, e.state.RemoveGPU(s.UUID))
		}
	}
}

// publish makes the units visible to Reserve, Stats and Fingerprint, and wakes
// the latter if Nomad would see a difference.
func (e *engine) publish(v versions, units []*unit) {
	next := &publication{groups: buildGroups(v, units), units: units, catalogue: newCatalogue(units)}
	previous := e.latest.Swap(next)
	if previous != nil && sameGroups(previous.groups, next.groups) {
		next.groups = previous.groups
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
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

// probe tries the GPUs that may have recovered, each in the background and one
// attempt at a time.
func (e *engine) probe(ctx context.Context) {
	for _, uuid := range e.tracker.suspects() {
		if e.probing[uuid] {
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
	e.complain("probe of "+o.uuid, o.err)
	if o.err == nil && e.tracker.cleared(o.uuid) {
		e.log.Info("the GPU works again", "gpu", o.uuid)
	}
}

// complain logs a failure when it begins, when it changes and when it ends.
func (e *engine) complain(what string, err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = err.Error()
	}
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
