package device

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// service is a reconciler at work, with what belongs to it.
type service struct {
	reconciler *reconciler
	meter      *usageMeter
	monitor    *monitor
	// metricsAddress is where metrics are served, empty if they are not.
	metricsAddress string

	once   sync.Once
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// prepare opens everything that a configuration names, and begins nothing: Nomad
// configures plugins that it stops at once, only to see whether it can.
// outdated is called when only a new process can go on.
func prepare(log hclog.Logger, c *config, outdated func()) (*service, error) {
	p, err := openPlatform(log, c)
	if err != nil {
		return nil, err
	}
	r, err := newReconciler(log, c, p)
	if err != nil {
		p.close()
		return nil, err
	}
	r.outdated = outdated
	m := &usageMeter{observer: p.observer, state: r.state, published: r.published, logOnce: r.logOnce, now: time.Now, cgroups: readCgroups}
	return &service{reconciler: r, meter: m, monitor: &monitor{observer: p.observer, published: r.published, meter: m, health: r.health, now: time.Now, server: r.mps.Server, environ: readEnviron}}, nil
}

// begin starts the work; a second call changes nothing.
func (s *service) begin(ctx context.Context) {
	s.once.Do(func() {
		ctx, s.cancel = context.WithCancel(ctx)
		r := s.reconciler
		if r.config.metrics != "" {
			metrics, err := serveMetrics(s.monitor, r.log, r.config.metrics, r.config.dcgmNames)
			r.logOnce.report("metrics", err)
			if err == nil {
				s.metricsAddress = metrics.address
				s.work.Go(func() {
					<-ctx.Done()
					metrics.close()
				})
			}
		}
		s.work.Go(func() { r.run(ctx) })
		s.work.Go(func() { s.meter.run(ctx, r.config.health.measure) })
	})
}

// end stops the work and waits for it. MPS daemons go on: tasks depend on them.
func (s *service) end() {
	s.once.Do(func() { s.cancel = func() {} })
	s.cancel()
	s.work.Wait()
	s.reconciler.mps.Close()
	s.reconciler.platform.close()
}

// newReconciler makes a reconciler that has done nothing yet.
func newReconciler(log hclog.Logger, c *config, p *platform) (*reconciler, error) {
	state, err := statedir.Open(c.stateDir, p.bootID)
	if err != nil {
		return nil, err
	}
	registry, err := openRegistry(c.dataDir)
	if err != nil {
		return nil, err
	}
	wake, logOnce := newTrigger(), newOnceLogger(log)
	r := &reconciler{
		log: log, logOnce: logOnce, config: c, platform: p, now: time.Now, startOf: processStart,
		registry: registry, cordons: OpenCordons(c.dataDir), forgotten: OpenForgotten(c.dataDir), releases: OpenReleases(c.dataDir), state: state,
		health: newHealthTracker(c.health), listener: newEventListener(log, p.observer, wake), probes: newProbes(p.prober, c.health.interval/2),
		cdi:        &cdiSpecs{source: p.cdi, operatorDirs: p.operatorCDI, ourDir: state.CDIDir()},
		background: newBackground(wake.pull, time.Now), timeslices: timesliceHistory{},
		published: newPublisher(time.Now()), wake: wake,
	}
	r.reservations, err = openReservations(c.dataDir, c.modeChangeDelay, r.now())
	logOnce.report("reservations", err)
	old, err := state.GPUs()
	logOnce.report("states", err)
	r.health.restore(old)
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the plugin's own binary: %w", err)
	}
	r.mps, err = mps.New(mps.Options{Logger: log, StateDir: c.stateDir, Program: c.mps.Control, Self: self,
		MultiUser: c.mps.MultiUser, HostShm: c.mps.HostShm, ShmMiB: c.shmMiB, Changed: wake.pull})
	return r, err
}

// probeTimeout is how long a CUDA program may take to show that a GPU works:
// the first context on a GPU of a large machine takes seconds.
const probeTimeout = 30 * time.Second

// openPlatform finds the machine's hardware, or makes the simulated one.
func openPlatform(log hclog.Logger, c *config) (*platform, error) {
	bootID, err := statedir.BootID()
	if err != nil {
		return nil, err
	}
	if c.simulation != nil {
		return openSimulation(log, c, bootID)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the plugin's own binary: %w", err)
	}
	lib := c.driver.Library()
	backend, smi := nvidia.New(lib, c.health.timeout), nvidia.SMI{Program: c.driver.Program(c.nvidiaSMI)}
	return &platform{
		observer:    backend,
		prober:      nvidia.Prober{Self: self, Timeout: probeTimeout, LibraryPath: c.driver.LibraryPath(), Exec: mps.ExecCommand},
		timeslicer:  smi,
		resetter:    smi,
		partitioner: backend,
		cdi:         nvidia.CDI{Library: lib, Driver: c.driver, Log: log, Hook: cmp.Or(c.cdiHook, self)},
		operatorCDI: []string{"/etc/cdi", "/var/run/cdi"},
		bootID:      bootID,
		close:       backend.Close,
	}, nil
}

func openSimulation(log hclog.Logger, c *config, bootID string) (*platform, error) {
	topology, err := sim.ReadTopology(c.simulation.Topology, c.simulation.Machine)
	if err != nil {
		return nil, err
	}
	if c.simulation.BootID != "" {
		bootID = c.simulation.BootID
	}
	machine, err := sim.New(topology, sim.Options{Dir: c.simulation.Dir, BootID: bootID, Report: func(err error) {
		log.Error("the simulator keeps to what it read before", "error", err)
	}})
	if err != nil {
		return nil, err
	}
	log.Warn("the GPUs are simulated", "topology", c.simulation.Topology, "machine", topology.Name)
	backend := nvidia.New(machine, c.health.timeout)
	return &platform{observer: backend, prober: machine, timeslicer: machine, resetter: machine, partitioner: backend, cdi: machine, bootID: bootID, close: backend.Close}, nil
}
