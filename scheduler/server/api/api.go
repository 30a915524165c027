// SPDX-License-Identifier: MPL-2.0

// Package api is the placement service's own REST API, beside Nomad's.
//
//	GET    /api/v1/gpu/status, /nodes, /health, /monitoring   what there is
//	POST   /api/v1/gpu/validate, /allocate                    may I, and hold it for me
//	GET    /api/v1/gpu/reservations, /reservations/{id}
//	DELETE /api/v1/gpu/reservations/{id}
//	POST   /api/v1/gpu/setup-pytorch, /setup-tensorflow       environment and job fragment
//	GET    /api/v1/gpu/cluster                                everything, for programs
//	GET    /api/v1/gpu/idle                                   who holds what and does not use it
//	GET    /api/v1/gpu/ledger, /ledger/advice                 who held and used what, as JSON or CSV
//	GET    /api/v1/openapi.json, /healthz, /readyz
//
// Every answer is JSON. An error has a 4xx or 5xx status and says in "error"
// the fault and the remedy. While the service has no view of the cluster,
// whatever needs one answers 503 with the reason.
//
// The caller's Nomad token, in the headers that Nomad reads, decides what the
// caller may see and do; see [Gate].
package api

import (
	"errors"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Leadership says who decides.
type Leadership interface {
	// Secret is what the replica that leads knows the others by.
	Secret() string
	// Leader returns the base URL of the replica that decides, and whether
	// this is it. The URL is empty while there is no leader.
	Leader() (address string, self bool)
}

// Config is what the API is made of.
type Config struct {
	Views  view.Source
	Keeper reserve.Keeper
	// Past is what was done to each job.
	Past Past
	// Books are the ledger; nil where none is kept.
	Books Books
	// Gate asks Nomad what a caller may do.
	Gate Gate
	// Leadership is nil where this replica always decides.
	Leadership Leadership
	// Takeover is how long it takes at most until another replica leads.
	Takeover time.Duration
	// ModelGB is the nominal memory per GPU type in GB: an H100 counts as the
	// 80 GB card that it is sold as, whatever its driver reports.
	ModelGB map[string]float64
	// StaleAfter is the age of the picture from which the service is not ready;
	// 0 for a minute.
	StaleAfter time.Duration
	// DefaultHold is how long room is reserved when a caller does not say, and
	// LongestHold what it may say at most; 0 for ten minutes and a day.
	DefaultHold, LongestHold time.Duration
	// Forward sends requests to the replica that leads; nil for the default.
	Forward http.RoundTripper
	// Audit notes what was decided about a reservation; nil for no log.
	Audit func(r *http.Request, token string, e Audited)
	// Heard is when Nomad was last heard; an error while it never was. Nil: as the views
	// say, which takes drawing one.
	Heard func() (time.Time, error)
	// Now is the clock; nil for the real one.
	Now    func() time.Time
	Logger hclog.Logger
}

// API answers. Make one with New.
type API struct {
	Config
}

// New returns an API.
func New(c Config) (*API, error) {
	if c.Views == nil || c.Keeper == nil || c.Past == nil || c.Gate == nil || c.Logger == nil {
		return nil, errors.New("make API: views, a keeper, the past, a gate and a logger are needed")
	}
	if c.StaleAfter == 0 {
		c.StaleAfter = time.Minute
	}
	if c.DefaultHold == 0 {
		c.DefaultHold = 10 * time.Minute
	}
	if c.LongestHold == 0 {
		c.LongestHold = 24 * time.Hour
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Heard == nil {
		c.Heard = func() (time.Time, error) {
			seen, err := c.Views.View()
			if err != nil {
				return time.Time{}, err
			}
			return seen.Synced, nil
		}
	}
	return &API{Config: c}, nil
}

// route is one operation.
type route struct {
	method, path string
	handle       func(*API, http.ResponseWriter, *http.Request) error
	// leads operations are for the replica that decides.
	leads bool
	// open operations need no token, or ask for what it may do themselves.
	open bool
}

// routes are all operations; the OpenAPI document describes each of them.
var routes = []route{
	{method: "GET", path: "/api/v1/gpu/status", handle: (*API).status},
	{method: "GET", path: "/api/v1/gpu/nodes", handle: (*API).nodes},
	{method: "GET", path: "/api/v1/gpu/health", handle: (*API).health},
	{method: "GET", path: "/api/v1/gpu/monitoring", handle: (*API).monitoring},
	{method: "GET", path: "/api/v1/gpu/cluster", handle: (*API).cluster},
	{method: "GET", path: "/api/v1/gpu/idle", handle: (*API).idle},
	{method: "GET", path: "/api/v1/gpu/events", handle: (*API).events},
	{method: "GET", path: "/api/v1/gpu/ledger", handle: (*API).report},
	{method: "GET", path: "/api/v1/gpu/ledger/advice", handle: (*API).advice},
	{method: "POST", path: "/api/v1/gpu/validate", handle: (*API).validate, leads: true, open: true},
	{method: "POST", path: "/api/v1/gpu/allocate", handle: (*API).allocate, leads: true, open: true},
	{method: "GET", path: "/api/v1/gpu/reservations", handle: (*API).reservations, leads: true},
	{method: "GET", path: "/api/v1/gpu/reservations/{id}", handle: (*API).reservation, leads: true},
	{method: "DELETE", path: "/api/v1/gpu/reservations/{id}", handle: (*API).release, leads: true, open: true},
	{method: "POST", path: "/api/v1/gpu/setup-pytorch", handle: (*API).setupPyTorch, open: true},
	{method: "POST", path: "/api/v1/gpu/setup-tensorflow", handle: (*API).setupTensorFlow, open: true},
	{method: "GET", path: "/api/v1/openapi.json", handle: (*API).openapi, open: true},
	{method: "GET", path: "/healthz", handle: (*API).healthz, open: true},
	{method: "GET", path: "/readyz", handle: (*API).readyz, open: true},
}

// Register adds the API's handlers with a function such as http.ServeMux's
// Handle.
func (a *API) Register(handle func(pattern string, h http.Handler)) {
	methods := map[string][]string{}
	for _, r := range routes {
		handle(r.method+" "+r.path, a.wrap(r))
		methods[r.path] = append(methods[r.path], r.method)
	}
	for path, allowed := range methods {
		handle(path, wrongMethod(allowed))
	}
	handle("/api/", http.HandlerFunc(unknownPath))
}

// wrap makes a handler of an operation: leadership, token, errors.
func (a *API) wrap(r route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if r.leads && a.forwarded(w, req) {
			return
		}
		if !r.open {
			if err := a.admit(req); err != nil {
				a.fail(w, req, err)
				return
			}
		}
		if err := r.handle(a, w, req); err != nil {
			a.fail(w, req, err)
		}
	})
}

// admit lets a caller read. That there is no view is told to everybody: without
// Nomad there is no way to ask who the caller is.
func (a *API) admit(r *http.Request) error {
	if _, err := a.Heard(); err != nil {
		return blind(err)
	}
	return a.Gate.MayRead(r.Context(), nomad.CallerToken(r.Header))
}

// picture is the newest view, as far as the caller may see it.
func (a *API) picture(r *http.Request) (*view.Cluster, error) {
	c, err := a.Views.View()
	if err != nil {
		return nil, blind(err)
	}
	visible, all := map[string]bool{}, true
	for _, namespace := range c.Namespaces() {
		if visible[namespace], err = a.visible(r, namespace); err != nil {
			return nil, err
		}
		all = all && visible[namespace]
	}
	if all {
		return c, nil
	}
	return c.Redact(func(namespace string) bool { return visible[namespace] }), nil
}

// visible reports whether the caller may see the jobs of a namespace. One that
// is gone, and of which only the past is told, no one may.
func (a *API) visible(r *http.Request, namespace string) (bool, error) {
	err := a.Gate.MayReadNamespace(r.Context(), nomad.CallerToken(r.Header), namespace)
	if errors.Is(err, ErrDenied) || errors.Is(err, ErrNoNamespace) {
		return false, nil
	}
	return err == nil, err
}
