// SPDX-License-Identifier: MPL-2.0

package device

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/prepare"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/device/telemetry"
	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// service is a reconciler at work, with what belongs to it.
type service struct {
	reconciler *reconciler
	meter      *telemetry.Meter
	monitor    *telemetry.Monitor
	// metricsAddress is where metrics are served, empty if they are not.
	metricsAddress string

	once   sync.Once
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// openService opens everything that a configuration names, and begins nothing: Nomad
// configures plugins that it stops at once, only to see whether it can.
// outdated is called when only a new process can go on.
func openService(log hclog.Logger, c *config.Config, outdated func()) (*service, error) {
	p, err := fleet.Open(log, c)
	if err != nil {
		return nil, err
	}
	cgroups := occupancy.NewCgroupMemory(cgroup.Of, time.Now).Of
	r, err := newReconciler(log, c, p, cgroups)
	if err != nil {
		p.Close()
		return nil, err
	}
	r.outdated = outdated
	m := &telemetry.Meter{Observer: p.Observer, State: r.state, Published: r.published, Report: r.logOnce.report, Now: time.Now, Cgroups: cgroups}
	return &service{reconciler: r, meter: m, monitor: &telemetry.Monitor{Observer: p.Observer, Published: r.published, Meter: m, Health: r.health, Now: time.Now, Server: r.mps.Server, Environ: occupancy.Environ, DriverCounts: r.state.DriverCounts}}, nil
}

// begin starts the work; a second call changes nothing.
func (s *service) begin(ctx context.Context, agent procs.Process) {
	s.once.Do(func() {
		ctx, s.cancel = context.WithCancel(ctx)
		r := s.reconciler
		r.logOnce.report("claim", takeOver(r.log, r.config.StateDir, agent))
		if r.config.Metrics != "" {
			metrics, err := telemetry.Serve(s.monitor, r.log, r.config.Metrics, r.config.DCGMNames)
			r.logOnce.report("metrics", err)
			if err == nil {
				s.metricsAddress = metrics.Address
				s.work.Go(func() {
					<-ctx.Done()
					metrics.Close()
				})
			}
		}
		s.work.Go(func() { r.run(ctx) })
		s.work.Go(func() { s.meter.Run(ctx, r.config.Health.Measure) })
	})
}

// end stops the work and waits for it. MPS daemons go on: tasks depend on them.
func (s *service) end() {
	s.once.Do(func() { s.cancel = func() {} })
	s.cancel()
	s.work.Wait()
	s.reconciler.mps.Close()
	s.reconciler.platform.Close()
}

// newReconciler makes a reconciler that has done nothing yet; cgroups reads the control
// groups of a process, also of one that ended a while ago.
func newReconciler(log hclog.Logger, c *config.Config, p *fleet.Platform, cgroups func(pid int) []cgroup.Group) (*reconciler, error) {
	state, err := statedir.Open(c.StateDir, p.BootID)
	if err != nil {
		return nil, err
	}
	known, err := registry.Open(c.DataDir)
	if err != nil {
		return nil, err
	}
	wake, logOnce := newTrigger(), newOnceLogger(log)
	report, now := logOnce.report, time.Now
	cordons, tracker := registry.OpenCordons(c.DataDir), health.New(c.Health)
	reservations, err := occupancy.OpenReservations(c.DataDir, c.ModeChangeDelay, now())
	report("reservations", err)
	old, err := state.GPUs()
	report("states", err)
	tracker.Restore(old)
	daemons, err := newDaemons(log, c, reservations, wake.pull)
	if err != nil {
		return nil, err
	}
	return &reconciler{
		log: log, logOnce: logOnce, config: c, platform: p, now: now,
		registry: known, reservations: reservations, state: state, health: tracker, mps: daemons,
		listener:     newEventListener(log, p.Observer, wake.pull),
		observations: &observations{log: log, report: report, health: tracker, registry: known, forgotten: registry.OpenForgotten(c.DataDir), now: now},
		probes: &probes{log: log, report: report, health: tracker, registry: known, cordons: cordons, observer: p.Observer, prober: p.Prober,
			server: daemons.Server, startOf: processStart, now: now, pause: c.Health.Interval / 2,
			outcomes: make(chan outcome), running: map[string]bool{}, ended: map[string]time.Time{}},
		inputs: &inputSource{report: report, config: c, registry: known, cordons: cordons, reservations: reservations, state: state, health: tracker,
			observer: p.Observer, server: daemons.Server, client: readClient, now: now},
		preparer: prepare.New(prepare.Options{Log: log, Report: report, Config: c, Platform: p, State: state, Releases: registry.OpenReleases(c.DataDir), Cordons: cordons,
			Daemons: daemons, Cgroups: cgroups, Wake: wake.pull, Now: now}),
		published: newPublisher(now()), worked: map[string]bool{}, wake: wake,
	}, nil
}

// newDaemons makes a supervisor of MPS daemons; changed is called when one became ready, or
// ceased to be.
func newDaemons(log hclog.Logger, c *config.Config, reservations *occupancy.Reservations, changed func()) (*mps.Supervisor, error) {
	tenants := &occupancy.Tenants{Knows: reservations.Knows}
	tenant := func(uuid string, _ int, group string, multiprocessors int) (mps.Tenant, error) {
		t, err := tenants.Find(uuid, group)
		share := plan.ShareOf(t.Device)
		return mps.Tenant{Group: t.Group, Limits: mpsctl.LimitsOf(share.MemoryMiB, cmp.Or(t.LimitMilli, share.LimitMilli), multiprocessors)}, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the plugin's own binary: %w", err)
	}
	return mps.New(mps.Options{Logger: log, StateDir: c.StateDir, Program: c.MPS.Control, Self: self, LibraryPath: nvidia.Driver(c.Driver).LibraryPath(),
		MultiUser: c.MPS.MultiUser, HostShm: c.MPS.HostShm, ShmMiB: c.ShmMiB, Tenant: tenant, Changed: changed})
}
