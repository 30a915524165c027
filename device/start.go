package device

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvml"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// prepare opens everything that a configuration names, and begins nothing: Nomad
// configures plugins that it stops at once, only to see whether it can.
func prepare(log hclog.Logger, c *config) (*engine, error) {
	p, err := openPlatform(log, c)
	if err != nil {
		return nil, err
	}
	e, err := newEngine(log, c, p)
	if err != nil {
		p.close()
	}
	return e, err
}

// service is an engine at work, with what belongs to it.
type service struct {
	engine *engine
	once   sync.Once
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// begin starts the work; a second call changes nothing.
func (s *service) begin(ctx context.Context) {
	s.once.Do(func() {
		ctx, s.cancel = context.WithCancel(ctx)
		e := s.engine
		if e.config.metrics != "" {
			metrics, err := serveMetrics(e, e.config.metrics)
			e.complain("metrics", err)
			if err == nil {
				s.work.Go(func() {
					<-ctx.Done()
					metrics.close()
				})
			}
		}
		s.work.Go(func() { e.run(ctx) })
		s.work.Go(func() { e.meter.run(ctx, e.config.health.measure) })
	})
}

// end stops the work and waits for it. MPS daemons go on: tasks depend on them.
func (s *service) end() {
	s.once.Do(func() { s.cancel = func() {} })
	s.cancel()
	s.work.Wait()
	s.engine.mps.Close()
	s.engine.platform.close()
}

// newEngine makes an engine that has not turned yet.
func newEngine(log hclog.Logger, c *config, p *platform) (*engine, error) {
	state, err := statedir.Open(c.stateDir, p.bootID)
	if err != nil {
		return nil, err
	}
	l, err := openLedger(c.dataDir)
	if err != nil {
		return nil, err
	}
	e := &engine{
		log: log, config: c, platform: p, ledger: l, state: state,
		cordons: OpenCordons(c.dataDir), forgotten: OpenForgotten(c.dataDir), tracker: newTracker(c.health), now: time.Now, began: time.Now(),
		names:  &cdiNames{source: p.cdi, operatorDirs: p.operatorCDI, ourDir: state.CDIDir()},
		events: make(chan hardware.Event), wake: make(chan struct{}, 1), outcomes: make(chan outcome),
		probing: map[string]bool{}, probed: map[string]time.Time{}, changed: make(chan struct{}), complained: map[string]string{},
	}
	e.chores, e.everSet, e.since = newChores(e.nudge, time.Now), map[string]bool{}, map[string]time.Time{}
	e.meter = &meter{engine: e, cgroups: readCgroups}
	e.reservations, err = openReservations(c.dataDir, c.modeChangeDelay, e.now())
	e.complain("reservations", err)
	old, err := state.GPUs()
	e.complain("states", err)
	e.tracker.restore(old)
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the plugin's own binary: %w", err)
	}
	e.mps, err = mps.New(mps.Options{Logger: log, StateDir: c.stateDir, Program: c.mps.Control, Self: self,
		MultiUser: c.mps.MultiUser, HostShm: c.mps.HostShm, ShmMiB: c.shmMiB, Changed: e.nudge})
	return e, err
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
	lib := gonvml.New()
	backend := nvml.New(lib, c.health.timeout)
	return &platform{
		observer:    backend,
		prober:      nvml.Prober{Self: self, Timeout: probeTimeout},
		timeslicer:  nvml.SMI{Program: c.nvidiaSMI},
		partitioner: backend,
		cdi:         nvml.CDI{Library: lib, Log: log, Hook: c.cdiHook},
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
	backend := nvml.New(machine, c.health.timeout)
	return &platform{observer: backend, prober: machine, timeslicer: machine, partitioner: backend, cdi: machine, bootID: bootID, close: backend.Close}, nil
}
