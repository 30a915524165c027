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
	"github.com/nomad-gpu/nomad-gpu/scheduler/control"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server"
	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/metrics"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/page"
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
	queues  []config.Queue // of Nomad Variables, as they last made sense
	client  *api.Client
	watcher *nomad.Watcher
	store   *nomad.Store
	lock    *nomad.Lock
	loaded  atomic.Bool // what is stored is known: set while this replica decides
	book    *decide.Book
	decider *decide.Decider
	loop    *control.Loop
	meter   *control.Meter
	server  *server.Server
	views   *gallery
	own     *prometheus.Registry // the service's own metrics
	audit   *server.LogFile      // nil: decisions go to the log
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
	s.book = decide.NewBook(c, time.Now)
	s.store = nomad.NewStore(s.client, c.Nomad.VariablesNamespace)
	s.lock = nomad.NewLock(s.client, c.Nomad.VariablesNamespace, lockPath, c.Listen.Advertise, c.Replica.LockTTL)
	s.decider = decide.NewDecider(s.book, s.store, s.decides)
	s.views = &gallery{book: s.book, leader: s.Leader}
	reader, silence := nomad.NewClient(s.client), silence{logger: logger}
	hardware := nomad.Hardware{ResourceNames: c.ResourceNames, ModelMemoryMiB: c.ModelMemoryMiB}
	s.watcher = &nomad.Watcher{
		Client: reader, Mirror: nomad.NewMirror(hardware), Sink: s.book,
		Heard: func() { s.book.Heard(); silence.end() },
		Lost:  func(err error) { s.book.Lost(err); silence.lasts(err) },
	}
	actor := nomad.NewActor(s.client)
	s.loop = &control.Loop{Book: s.book, Decider: s.decider, Actor: actor, Config: s.config.Load, Logger: logger.Named("control")}
	s.meter = &control.Meter{Reader: reader, Book: s.book, Config: s.config.Load}
	return s, s.newServer(c, up)
}

// newServer makes the HTTP side.
func (s *service) newServer(c *config.Config, up *upstream) (err error) {
	decider, own := newMetered(s.decider)
	s.own = own
	sc := server.Config{
		Nomad: up.address, NomadTLS: up.tls, Region: up.config.Region, Devices: c.DeviceNames(), Decider: decider, Leadership: s,
		PageURL: cmp.Or(c.Listen.PageURL, c.Listen.Advertise+page.Path), Limits: limits(c.Listen), Logger: s.logger.Named("server"),
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
	s.loop.Audit = func(e view.Event) {
		if err := sc.Audit.Did(e); err != nil {
			s.logger.Error("audit log is not written", "error", err)
		}
	}
	if s.server, err = server.New(sc); err != nil {
		return err
	}
	return s.addAPI(c, up, sc.PeerTLS)
}

func limits(l config.Listen) server.Limits {
	return server.Limits{
		MaxBodyBytes:  l.MaxBodyBytes,
		JobsPerSecond: float64(l.RequestsPerSecond), JobsBurst: l.Burst,
		DecideTimeout: l.RequestTimeout,
	}
}

// addAPI puts the REST API, the metrics and the web page beside Nomad's API.
func (s *service) addAPI(c *config.Config, up *upstream, peers *tls.Config) error {
	gate, err := rest.NewNomadGate(up.config)
	if err != nil {
		return err
	}
	models := map[string]float64{}
	for model, mib := range c.ModelMemoryMiB {
		models[model] = float64(mib) / 1024
	}
	a, err := rest.New(rest.Config{
		Views: s, Keeper: s.decider, Gate: gate, Leadership: s, ModelGB: models,
		DefaultHold: c.Reservation.DefaultTTL, LongestHold: c.Reservation.MaxTTL,
		Forward: &http.Transport{TLSClientConfig: peers, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: time.Minute}, Audit: s.auditReservation, Logger: s.logger.Named("api"),
	})
	if err != nil {
		return err
	}
	a.Register(s.server.Handle)
	metrics.Register(s.server.Handle, a, s.own, time.Now)
	return page.Register(s.server.Handle, a, time.Now)
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

// View returns the newest picture, with who leads.
func (s *service) View() (*view.Cluster, error) { return s.views.View() }

// Leader returns where the replica that decides is reached, and whether this
// is it. The address is empty while nobody decides, as a new leader does not
// before it has read what is stored.
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
	err := group.Wait()
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

// loadRetry is the pause before a new leader asks again for what is stored.
const loadRetry = 100 * time.Millisecond

// term is one time of leading. It begins with what earlier leaders decided,
// promised and reserved: without that the room of others looks free.
func (s *service) term(ctx context.Context) {
	defer s.loaded.Store(false)
	said := false
	for {
		err := s.book.Ready()
		if err == nil {
			err = s.decider.Load(ctx)
		}
		if err == nil {
			break
		}
		if !said && !errors.Is(err, decide.ErrBlind) {
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
	s.logger.Info("this replica decides")
	s.loop.Run(ctx)
}
