package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
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
	client  *api.Client
	watcher *nomad.Watcher
	store   *nomad.Store
	lock    *nomad.Lock
	book    *decide.Book
	decider *decide.Decider
	loop    *control.Loop
	meter   *control.Meter
	server  *server.Server
	views   *gallery
	own     *prometheus.Registry // the service's own metrics
	audit   io.Closer
}

func newService(c *config.Config, load func() (*config.Config, error), logger hclog.Logger) (*service, error) {
	s := &service{logger: logger, load: load, file: c}
	s.config.Store(c)
	conf, err := nomadConfig(c)
	if err != nil {
		return nil, err
	}
	if s.client, err = api.NewClient(conf); err != nil {
		return nil, fmt.Errorf("make Nomad client: %w", err)
	}
	s.book = decide.NewBook(c, time.Now)
	s.store = nomad.NewStore(s.client, c.Nomad.VariablesNamespace)
	s.lock = nomad.NewLock(s.client, c.Nomad.VariablesNamespace, lockPath, c.Listen.Advertise, c.Replica.LockTTL)
	s.decider = decide.NewDecider(s.book, s.store, s.lock.Leading)
	s.views = &gallery{book: s.book, leader: s.Leader}
	reader := nomad.NewClient(s.client)
	hardware := nomad.Hardware{ResourceNames: c.ResourceNames, ModelMemoryMiB: c.ModelMemoryMiB}
	s.watcher = &nomad.Watcher{
		Client: reader, Mirror: nomad.NewMirror(hardware), Sink: s.book, Heard: s.book.Heard,
		Lost: func(err error) { s.book.Lost(err); logger.Warn("cannot hear Nomad", "error", err) },
	}
	actor := nomad.NewActor(s.client)
	s.loop = &control.Loop{Book: s.book, Decider: s.decider, Actor: actor, Config: s.config.Load, Logger: logger.Named("control")}
	s.meter = &control.Meter{Reader: reader, Book: s.book, Config: s.config.Load}
	return s, s.newServer(c, conf)
}

// newServer makes the HTTP side.
func (s *service) newServer(c *config.Config, conf *api.Config) error {
	address, err := url.Parse(conf.Address)
	if err != nil {
		return fmt.Errorf("read Nomad's address: %w", err)
	}
	decider, own := newMetered(s.decider)
	s.own = own
	sc := server.Config{Nomad: address, Region: conf.Region, Decider: decider, Leadership: s, PageURL: c.Listen.Advertise + page.Path, Logger: s.logger.Named("server")}
	if address.Scheme == "https" {
		if sc.NomadTLS, err = server.ClientTLS(server.TLSFiles{CertFile: conf.TLSConfig.ClientCert, KeyFile: conf.TLSConfig.ClientKey, CAFile: conf.TLSConfig.CACert, ServerName: conf.TLSConfig.TLSServerName}); err != nil {
			return err
		}
	}
	if sc.TLS, err = server.ServerTLS(server.TLSFiles{CertFile: c.Listen.CertFile, KeyFile: c.Listen.KeyFile, CAFile: c.Listen.ClientCAFile}); err != nil {
		return err
	}
	peer := server.TLSFiles{CertFile: c.Listen.CertFile, KeyFile: c.Listen.KeyFile, CAFile: c.Listen.ClientCAFile}
	if sc.PeerTLS, err = server.ClientTLS(peer); err != nil {
		return err
	}
	sc.Audit = server.NewAudit(s.logger.Named("audit").StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Info}))
	sc.Limits = server.DefaultLimits()
	sc.Limits.MaxBodyBytes = c.Listen.MaxBodyBytes
	sc.Limits.JobsPerSecond, sc.Limits.JobsBurst = float64(c.Listen.RequestsPerSecond), c.Listen.Burst
	sc.Limits.DecideTimeout = c.Listen.RequestTimeout
	if c.Listen.AuditFile != "" {
		f, err := os.OpenFile(c.Listen.AuditFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("open audit log: %w", err)
		}
		s.audit, sc.Audit = f, server.NewAudit(f)
	}
	if s.server, err = server.New(sc); err != nil {
		return err
	}
	return s.addAPI(c, conf, sc.PeerTLS)
}

// addAPI puts the REST API, the metrics and the web page beside Nomad's API.
func (s *service) addAPI(c *config.Config, conf *api.Config, peers *tls.Config) error {
	gate, err := rest.NewNomadGate(*conf)
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
// is it.
func (s *service) Leader() (address string, self bool) { return s.lock.Leader(), s.lock.Leading() }

// nomadConfig is how Nomad is reached: the environment, and over it the file.
func nomadConfig(c *config.Config) (*api.Config, error) {
	conf := api.DefaultConfig()
	for to, from := range map[*string]string{
		&conf.Address: c.Nomad.Address, &conf.Region: c.Nomad.Region, &conf.TLSConfig.CACert: c.Nomad.CAFile,
		&conf.TLSConfig.ClientCert: c.Nomad.CertFile, &conf.TLSConfig.ClientKey: c.Nomad.KeyFile,
		&conf.TLSConfig.TLSServerName: c.Nomad.TLSServerName,
	} {
		if from != "" {
			*to = from
		}
	}
	if c.Nomad.TokenFile != "" {
		text, err := os.ReadFile(c.Nomad.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("read Nomad token: %w", err)
		}
		conf.SecretID = strings.TrimSpace(string(text))
	}
	return conf, nil
}

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
		s.logger.Info("this replica leads")
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

// term is one time of leading.
func (s *service) term(ctx context.Context) {
	for s.book.Ready() != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	if err := s.decider.Load(ctx); err != nil && ctx.Err() == nil {
		s.logger.Error("could not load what is stored", "error", err)
	}
	s.loop.Run(ctx)
}

// variablesInterval is how often the queues in Nomad Variables are read.
const variablesInterval = 15 * time.Second

// reloads reads the configuration again on SIGHUP, and the queues of Nomad
// Variables every now and then.
func (s *service) reloads(ctx context.Context) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	tick := time.NewTicker(variablesInterval)
	defer tick.Stop()
	s.refresh(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-hup:
			c, err := s.load()
			if err != nil {
				s.logger.Error("the configuration is not valid; the old one stays", "error", err)
				continue
			}
			c.Listen = s.file.Listen
			s.file = c
			s.logger.SetLevel(hclog.LevelFromString(c.LogLevel))
			s.logger.Info("configuration read again")
		}
		s.refresh(ctx)
	}
}

// refresh puts the file and the queues of Nomad Variables together.
func (s *service) refresh(ctx context.Context) {
	queues, err := s.variableQueues(ctx)
	if err != nil {
		s.logger.Warn("could not read queues from Nomad Variables; they stay as they were", "error", err)
		return
	}
	c, err := s.file.WithQueues(queues)
	if err != nil {
		s.logger.Warn("queues in Nomad Variables do not fit; they stay as they were", "error", err)
		return
	}
	s.config.Store(c)
	s.book.Configure(c)
}

const queuePrefix = "nomad-gpu/queues/"

func (s *service) variableQueues(ctx context.Context) ([]config.Queue, error) {
	paths, err := s.store.List(ctx, queuePrefix)
	if err != nil {
		return nil, err
	}
	var queues []config.Queue
	for path := range paths {
		item, err := s.store.Get(ctx, path)
		if err != nil {
			return nil, err
		}
		q, err := config.QueueFromItems(strings.TrimPrefix(path, queuePrefix), item.Values)
		if err != nil {
			return nil, err
		}
		queues = append(queues, q)
	}
	return queues, nil
}
