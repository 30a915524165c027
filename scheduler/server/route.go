// SPDX-License-Identifier: MPL-2.0

package server

import (
	"net/http"
	"strings"
)

// routeKind is what the service does with a request to Nomad.
type routeKind int

const (
	// passed requests go to Nomad as they are.
	passed routeKind = iota
	// registered requests carry a job that is admitted.
	registered
	// planned and validated requests carry a job that is decided dry.
	planned
	validated
	// rechecked requests change a registered job without carrying it: scale,
	// dispatch and revert, and force, which starts a child of a periodic job.
	scaled
	dispatched
	reverted
	forced
)

// route is a request's kind, and the job's ID where the path holds it.
type route struct {
	kind  routeKind
	jobID string
	// payload is set where the body says nothing: that of a dispatch which is its payload, and
	// that of a force, which Nomad does not read.
	payload bool
}

const jobPrefix = "/v1/job/"

// suffixes are tried as Nomad tries them: on the decoded path, from its end. So
// a job named "a/plan" cannot be registered through its own path, neither here
// nor there, and no escaping of the path reaches a route that is not seen here.
var suffixes = []struct {
	suffix string
	route  route
}{
	{"/plan", route{kind: planned}},
	{"/scale", route{kind: scaled}},
	{"/dispatch", route{kind: dispatched}},
	{"/dispatch/payload", route{kind: dispatched, payload: true}},
	{"/revert", route{kind: reverted}},
	{"/periodic/force", route{kind: forced, payload: true}},
}

// otherSuffixes are the routes under a job that carry no job: forced
// evaluations start jobs that are registered already.
var otherSuffixes = []string{
	"/evaluate", "/allocations", "/evaluations", "/summary", "/versions",
	"/deployments", "/deployment", "/stable", "/services", "/submission", "/actions", "/action", "/tag",
}

// startsChild reports whether a request has Nomad make a child of a registered job.
func (rt route) startsChild() bool { return rt.kind == dispatched || rt.kind == forced }

func routeOf(r *http.Request) route {
	if r.Method != http.MethodPut && r.Method != http.MethodPost {
		return route{}
	}
	path := r.URL.Path
	switch path {
	case "/v1/jobs":
		return route{kind: registered}
	case "/v1/validate/job":
		return route{kind: validated}
	}
	id, found := strings.CutPrefix(path, jobPrefix)
	if !found {
		return route{}
	}
	for _, s := range otherSuffixes {
		if strings.HasSuffix(id, s) {
			return route{}
		}
	}
	for _, s := range suffixes {
		if job, found := strings.CutSuffix(id, s.suffix); found {
			s.route.jobID = job
			return s.route
		}
	}
	return route{kind: registered, jobID: id}
}

// isNomadPath reports whether a path belongs to Nomad's API or UI.
func isNomadPath(path string) bool {
	return strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/ui/") || path == "/ui"
}
