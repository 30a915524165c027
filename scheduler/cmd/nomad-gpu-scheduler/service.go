// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/follow"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reconcile"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server"
	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/metrics"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/page"
	"github.com/nomad-gpu/nomad-gpu/scheduler/show"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// lockPath is the Nomad Variable that the leading replica holds.
const lockPath = "nomad-gpu/leader"

// service is everything that serve runs, wired together.
type service struct {
	logger  hclog.Logger
	config  atomic.Pointer[config.Config] // with the queues of Nomad Variables
	load    func() (*config.Config, error)
	file    *config.Config
	queues  []config.Queue           // of Nomad Variables, as they last made sense
	trouble atomic.Pointer[[]string] // with those that make none
	client  *api.Client
	watcher *nomad.Watcher
	store   record.Store
	lock    *nomad.Lock
	loaded  atomic.Bool // the stored state is known: set while this replica decides
	state   *state.State
	decider *leader.Decider
	loop    *reconcile.Loop
	meter   *reconcile.Meter
	server  *server.Server
	views   *show.Cache
	own     *prometheus.Registry // the service's own metrics
	audit   *server.LogFile      // nil: decisions go to the log
	books   *books               // nil: there is no ledger
	traces  *trace.Tracer
	follow  *follow.Follower
	pools   *pools
}

func newService(c *config.Config, load func() (*config.Config, error), logger hclog.Logger) (*service, error) {
	s := &service{logger: logger, load: load, file: c}
	s.config.Store(c)
	up, err := newUpstream(c)
	if err != nil {
		return nil, err
	}
	if s.client, err = up.client(); err != nil {
		return nil, err
	}
	if s.traces, err = newTracer(c, logger); err != nil {
		return nil, err
	}
	s.state = state.New(c, time.Now)
	s.follow = &follow.Follower{Traces: s.traces, State: s.state, Decides: s.decides, Now: time.Now}
	s.store = nomad.NewStore(s.client, c.Nomad.VariablesNamespace)
	s.lock = nomad.NewLock(s.client, c.Nomad.VariablesNamespace, lockPath, c.Listen.Advertise, c.Replica.LockTTL)
	s.decider = leader.New(s.state, s.store, s.decides)
	s.decider.Late = true
	looks := make(chan struct{}, 1)
	s.views = &show.Cache{State: s.state, Leader: s.Leader, Looks: looks}
	reader, silence := nomad.NewClient(s.client), silence{logger: logger}
	hardware := nomad.Hardware{ResourceNames: c.ResourceNames, ModelMemoryMiB: c.ModelMemoryMiB}
	s.watcher = &nomad.Watcher{
		Client: reader, Mirror: nomad.NewMirror(hardware), Sink: s.follow,
		Heard: func() { s.state.Heard(); silence.end() },
		Lost:  func(err error) { s.state.Lost(err); silence.lasts(err) },
	}
	actor := nomad.NewActor(s.client)
	s.loop = &reconcile.Loop{
		State: s.state, Work: reconcile.NewFinder(), Decider: s.decider, Keeper: s.decider, Actor: actor,
		Config: s.config.Load, Logger: logger.Named("reconcile"), Recuts: &reconcile.Recuts{Cutter: actor},
	}
	s.meter = &reconcile.Meter{Reader: reader, Meters: s.state, Config: s.config.Load, Looks: looks}
	s.views.Trouble = func() []string {
		if list := s.trouble.Load(); list != nil {
			return *list
		}
		return nil
	}
	s.pools = &pools{withGPUs: s.poolsWithGPUs, ask: reader.BatchQueue, logger: logger.Named("node pools")}
	s.views.BatchQueues = s.pools.queues
	if s.books, err = openBooks(s, reader); err != nil {
		return nil, err
	}
	if s.books != nil {
		s.views.Outage = s.books.outage.Load
	}
	return s, s.newServer(c, up)
}

// newServer makes the HTTP side.
func (s *service) newServer(c *config.Config, up *upstream) (err error) {
	gate, err := rest.NewNomadGate(up.config)
	if err != nil {
		return err
	}
	decider, own := newMetered(s.decider)
	s.own = own
	own.MustRegister(lostSpans(s.traces))
	if s.books != nil {
		own.MustRegister(s.books.tallies.all()...)
	}
	sc := server.Config{
		Nomad: up.address, NomadTLS: up.tls, Region: up.config.Region, Devices: c.DeviceNames(), Decider: decider, Token: up.token, Denied: denied(gate), Leadership: s, Takeover: s.lock.Takeover(), Hold: s.loop.Hold,
		PageURL: cmp.Or(c.Listen.PageURL, c.Listen.Advertise+page.Path), Limits: limits(c.Listen), Refused: s.refusing(decider), Traces: s.traces, Logger: s.logger.Named("server"),
	}
	if sc.TLS, err = server.ServerTLS(server.TLSFiles{CertFile: c.Listen.CertFile, KeyFile: c.Listen.KeyFile, CAFile: c.Listen.ClientCAFile}); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	peers := server.TLSFiles{CertFile: c.Listen.CertFile, KeyFile: c.Listen.KeyFile, CAFile: cmp.Or(c.Listen.CAFile, c.Listen.ClientCAFile)}
	if sc.PeerTLS, err = server.ClientTLS(peers); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	sc.Audit = server.NewAudit(s.logger.Named("audit").StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Info}))
	if c.Listen.AuditFile != "" {
		if s.audit, err = server.OpenLogFile(c.Listen.AuditFile); err != nil {
			return fmt.Errorf("open audit log: %w", err)
		}
		sc.Audit = server.NewAudit(s.audit)
	}
	sc.Audit.Count = decider.count
	s.loop.Audit = func(e view.Event) {
		s.follow.Event(e)
		if err := sc.Audit.Did(e); err != nil {
			s.logger.Error("audit log is not written", "error", err)
		}
	}
	if s.server, err = server.New(sc); err != nil {
		return err
	}
	return s.addAPI(c, gate, sc.PeerTLS)
}

// denied asks a gate whether a caller may not submit jobs. Where Nomad gives no answer, it will
// have to give one to the submission itself.
func denied(gate *rest.NomadGate) func(ctx context.Context, token, namespace string) bool {
	return func(ctx context.Context, token, namespace string) bool {
		return errors.Is(gate.MaySubmit(ctx, token, namespace), rest.ErrDenied)
	}
}

func limits(l config.Listen) server.Limits {
	return server.Limits{
		MaxBodyBytes:  l.MaxBodyBytes,
		JobsPerSecond: float64(l.RequestsPerSecond), JobsBurst: l.Burst,
		Connections: l.MaxConnections, ConnectionsPerClient: l.MaxConnectionsPerClient,
		DecideTimeout: l.RequestTimeout,
	}
}

// addAPI puts the REST API, the metrics and the web page beside Nomad's API.
func (s *service) addAPI(c *config.Config, gate *rest.NomadGate, peers *tls.Config) error {
	models := map[string]float64{}
	for model, mib := range c.ModelMemoryMiB {
		models[model] = float64(mib) / 1024
	}
	var books rest.Books
	if s.books != nil {
		books = s.books
	}
	a, err := rest.New(rest.Config{
		Books: books, Views: s, Heard: s.heard, Keeper: s.decider, Past: s.decider, Gate: gate, Leadership: s, Takeover: s.lock.Takeover(), ModelGB: models,
		DefaultHold: c.Reservation.DefaultTTL, LongestHold: c.Reservation.MaxTTL,
		Forward: forwards(&c.Listen, peers), Audit: s.auditReservation, Logger: s.logger.Named("api"),
	})
	if err != nil {
		return err
	}
	a.Register(s.server.Handle)
	metrics.Register(s.server.Handle, a, s.own, time.Now)
	return page.Register(s.server.Handle, a, time.Now)
}

// forwards is the way to the replica that leads, for reservations. They have a quarter of the
// connections that one client may have there, beside the half for submissions; what is above
// that waits for one of them.
func forwards(l *config.Listen, peers *tls.Config) *http.Transport {
	t := &http.Transport{TLSClientConfig: peers, IdleConnTimeout: time.Minute}
	if l.MaxConnectionsPerClient > 0 {
		t.MaxConnsPerHost = max(1, l.MaxConnectionsPerClient/4)
	}
	return t
}

func (s *service) auditReservation(r *http.Request, token string, e rest.Audited) {
	outcome := map[bool]string{true: "placed", false: "refused"}[e.Status == http.StatusOK]
	if e.Action == "release" && e.Status == http.StatusOK {
		outcome = "released"
	}
	g := server.Group{Queue: e.Queue, Ask: e.Ask, Count: 1}
	if e.Node != "" {
		g.Preferred = []string{e.Node}
	}
	s.server.Note(r, token, server.Record{
		Action: e.Action, Outcome: outcome, Status: e.Status, Namespace: e.Namespace, Reservation: e.Reservation, Reason: e.Reason, Groups: []server.Group{g},
	})
}

// heard is when Nomad was last heard; an error while it never was.
func (s *service) heard() (at time.Time, err error) {
	s.state.View(func(r *state.Reader) {
		if at = r.Cluster.Synced(); at.IsZero() {
			err = r.Cluster.Ready()
		}
	})
	return at, err
}

// View returns the newest view, with who leads.
func (s *service) View() (*view.Cluster, error) { return s.views.View() }

// Leader returns where the replica that decides is reached, and whether this
// is it. The address is empty while no replica decides, as a new leader does not
// before it has read the stored state.
func (s *service) Leader() (address string, self bool) {
	if s.lock.Leading() && !s.loaded.Load() {
		return "", false
	}
	return s.lock.Leader(), s.decides()
}

// Secret is what the replica that leads knows the others by.
func (s *service) Secret() string { return s.lock.Secret() }

// decides reports whether this replica decides.
func (s *service) decides() bool { return s.loaded.Load() && s.lock.Leading() }

// run runs all parts until ctx ends. One that fails ends the others.
func (s *service) run(ctx context.Context, l net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.server.Serve(ctx, l) })
	group.Go(func() error { s.watcher.Run(ctx); return nil })
	group.Go(func() error { s.lead(ctx); return nil })
	group.Go(func() error { s.meter.Run(ctx); return nil })
	group.Go(func() error { s.reloads(ctx); return nil })
	group.Go(func() error { s.pools.run(ctx); return nil })
	if s.books != nil {
		group.Go(func() error { s.books.keeper.Run(ctx); return nil })
	}
	err := group.Wait()
	s.finish(ctx) // decisions answered after the term had ended
	s.traces.Close()
	if s.books != nil {
		err = errors.Join(err, s.books.store.Close())
	}
	if s.audit != nil {
		err = errors.Join(err, s.audit.Close())
	}
	return err
}

// lead runs the control loop whenever this replica holds the lock.
func (s *service) lead(ctx context.Context) {
	stop, done := context.CancelFunc(func() {}), make(chan struct{})
	close(done)
	s.lock.Run(ctx, func(leading bool) {
		stop()
		<-done
		if !leading {
			s.logger.Info("this replica does not lead any more")
			return
		}
		s.logger.Info("this replica has the leader lock")
		var term context.Context
		term, stop = context.WithCancel(ctx)
		done = make(chan struct{})
		go func(done chan struct{}) {
			defer close(done)
			s.term(term)
		}(done)
	}, func(err error) { s.logger.Warn("leader lock", "error", err) })
	stop()
	<-done
}

// lastRecords is how long a replica that stops leading has to record its last decisions.
const lastRecords = 5 * time.Second

// finish waits until the last decisions are recorded.
func (s *service) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastRecords)
	defer cancel()
	if err := s.decider.Finish(ctx); err != nil {
		s.logger.Warn("this replica stops before all is recorded", "error", err)
	}
}

// loadRetry is the pause before a new leader asks again for the stored state.
const loadRetry = 100 * time.Millisecond

// term is one time of leading. It begins with what earlier leaders decided,
// promised and reserved: without that the room of others looks free.
func (s *service) term(ctx context.Context) {
	defer func() {
		s.loaded.Store(false)
		s.finish(ctx)
	}()
	said := false
	for {
		var err error
		s.state.View(func(r *state.Reader) { err = r.Cluster.Ready() })
		if err == nil {
			err = s.decider.Load(ctx)
		}
		if err == nil {
			break
		}
		if !said && !errors.Is(err, state.ErrBlind) {
			s.logger.Error("could not load what is stored; nothing is decided until then", "error", err)
			said = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(loadRetry):
		}
	}
	s.loaded.Store(true)
	s.follow.Lead()
	s.logger.Info("this replica decides")
	s.loop.Run(ctx)
}
