// SPDX-License-Identifier: MPL-2.0

// Package server is the placement service as its clients see it: Nomad's own
// HTTP API with jobs admitted on their way, and beside it whatever is
// registered with Handle (the REST API, the web page, metrics).
//
//	client ──TLS──► limits ──► mux ─┬─ /api/… /metrics …   registered handlers
//	                                ├─ job routes          admission
//	                                └─ everything else     Nomad, unchanged
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace"
)

// Decider says where GPU work goes. It is asked by one replica at a time.
type Decider interface {
	// Decide answers every ask, in order. It has no effect outside of the
	// service until Settle. An error that is an *admit.Refusal is the answer to
	// the submitter. With dryRun nothing is counted and Settle is not called.
	Decide(ctx context.Context, asks []admit.Ask, dryRun bool) ([]admit.Decision, error)
	// Settle follows every Decide that was no dry run and gave no error:
	// accepted is whether Nomad took the job. Without an answer of Nomad it is
	// true, since the job may have arrived.
	Settle(ctx context.Context, asks []admit.Ask, decisions []admit.Decision, accepted bool)
	// Unchanged follows Settle where Nomad took a job as the one that it had already, which was
	// changed last at an index: of that, Nomad starts nothing again that has ended.
	Unchanged(asks []admit.Ask, index uint64)
}

// Leadership says who decides.
type Leadership interface {
	// Leader returns the base URL of the replica that decides, and whether
	// this is it. The URL is empty while there is no leader.
	Leader() (address string, self bool)
	// Secret is what the replica that leads knows the others by; empty while it is
	// not known.
	Secret() string
}

// Config is what a Server is made of.
type Config struct {
	// Nomad is the base URL of Nomad's HTTP API, NomadTLS how to speak to it;
	// nil for plain HTTP or the system's roots.
	Nomad    *url.URL
	NomadTLS *tls.Config
	// PeerTLS is how to speak to the replica that leads.
	PeerTLS *tls.Config
	// Region is Nomad's; jobs for another one are not decided here.
	Region string
	// Devices are the operator's names of device blocks for GPUs.
	Devices []string
	Decider Decider
	// Token is the service's own, with which it reads jobs that are scaled, dispatched,
	// reverted or forced by one who may not read them; nil: it has none.
	Token func() (string, error)
	// Denied reports whether Nomad says that the holder of a token may not submit jobs to
	// a namespace; nil: only Nomad's answer to the submission counts.
	Denied     func(ctx context.Context, token, namespace string) bool
	Leadership Leadership // nil: this replica decides
	// Takeover is how long it takes at most until another replica leads.
	Takeover time.Duration
	// Hold has a registered group, of which nothing runs, wait, so that it can be scaled
	// to what has no room yet; nil: such scalings are refused.
	Hold func(ctx context.Context, namespace, jobID, group string, hold admit.Hold) error
	// PageURL is where people find the service's page; admitted jobs link to
	// it. Empty for no link.
	PageURL string
	// TLS serves HTTPS; nil serves HTTP.
	TLS    *tls.Config
	Limits Limits
	// Refused is told of each connection above a bound, and which (BoundClient, BoundAll);
	// nil: they are not counted.
	Refused func(bound string)
	Audit   *Audit // nil: no audit log
	// Traces are of admissions; nil: none.
	Traces *trace.Tracer
	Logger hclog.Logger
}

// Server serves the API. Make one with New.
type Server struct {
	config Config
	mux    *http.ServeMux
	proxy  *proxy
	limits *limiter
}

// New returns a server that does not listen yet.
func New(c Config) (*Server, error) {
	if c.Nomad == nil || c.Decider == nil || c.Logger == nil {
		return nil, errors.New("make server: Nomad's address, a decider and a logger are needed")
	}
	if err := c.Limits.validate(); err != nil {
		return nil, fmt.Errorf("make server: %w", err)
	}
	s := &Server{config: c, mux: http.NewServeMux(), limits: newLimiter(c.Limits)}
	s.proxy = newProxy(c)
	s.mux.Handle("/", s.proxy)
	return s, nil
}

// Handle registers a handler beside Nomad's API, with a pattern as
// http.ServeMux has it. It must be called before Serve, and panics on a pattern
// that is malformed or taken, as http.ServeMux does.
func (s *Server) Handle(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

// Handler is everything that the server serves, limits included.
func (s *Server) Handler() http.Handler { return patient(s.limits.wrap(s.route())) }

// route keeps Nomad's paths from the mux's cleaning: an escaped job ID must
// reach Nomad as it was sent.
func (s *Server) route() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isNomadPath(r.URL.Path) {
			s.proxy.ServeHTTP(w, r)
			return
		}
		s.mux.ServeHTTP(w, r)
	})
}

// Serve answers on l until ctx ends, then lets requests finish for a moment.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	h := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          s.config.Logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
		TLSConfig:         s.config.TLS,
	}
	l = newBounded(l, s.config.Limits, s.config.Refused)
	if s.config.TLS != nil {
		l = tls.NewListener(l, s.config.TLS)
	}
	done := make(chan error, 1)
	go func() { done <- h.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	return s.shutdown(h, done)
}

func (s *Server) shutdown(h *http.Server, done <-chan error) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err := h.Shutdown(ctx)
	if err != nil { // streams do not end by themselves
		err = h.Close()
	}
	<-done
	s.proxy.close()
	return err
}
