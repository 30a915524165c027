// SPDX-License-Identifier: MPL-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// problem is an error with the status that the caller gets.
type problem struct {
	status  int
	text    string
	details []string
	fits    *view.Fits
	again   time.Duration // after how long to try again; 0: five seconds, where it helps
}

func (p *problem) Error() string { return p.text }

func problemf(status int, format string, args ...any) *problem {
	return &problem{status: status, text: fmt.Sprintf(format, args...)}
}

// blind is the answer while there is no view of the cluster.
func blind(err error) *problem {
	return problemf(http.StatusServiceUnavailable, "the service has no view of the cluster: %v", err)
}

// Failure is the body of every error.
type Failure struct {
	Success bool     `json:"success"` // always false
	Error   string   `json:"error"`
	Details []string `json:"details,omitempty"`
	// WouldFit is a smaller ask that would start now, where this one has no room.
	WouldFit *view.Fits `json:"would_fit,omitempty"`
}

// fail answers with an error.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := describe(err)
	if p.status >= http.StatusInternalServerError {
		a.Logger.Warn("request failed", "method", r.Method, "path", r.URL.Path, "status", p.status, "error", err)
	}
	if p.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(max(5, int(math.Ceil(p.again.Seconds())))))
	}
	answer(w, p.status, Failure{Error: p.text, Details: p.details, WouldFit: p.fits})
}

// describe finds the status of an error. An unforeseen one is the
// service's fault, and its text may name internal matters.
func describe(err error) *problem {
	var known *problem
	var refusal *admit.Refusal
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &refusal):
		return &problem{status: refusal.Status, text: refusal.Text, details: refusal.Details, fits: wouldFit(err)}
	case errors.Is(err, reserve.ErrNotFound), errors.Is(err, ErrNoNamespace):
		return problemf(http.StatusNotFound, "%v", err)
	case errors.Is(err, ErrLedgerAway):
		return problemf(http.StatusServiceUnavailable, "%v", ErrLedgerAway)
	case errors.Is(err, ErrDenied):
		return problemf(http.StatusForbidden, "%v", err)
	case errors.Is(err, ErrNoAnswer):
		return problemf(http.StatusBadGateway, "%v", err)
	}
	return problemf(http.StatusInternalServerError, "internal error; the service's log says more")
}

// wouldFit is the request that there would be room for now in place of a refused one; nil where that
// is not known.
func wouldFit(err error) *view.Fits {
	var instead *reserve.Instead
	if errors.As(err, &instead) {
		return &instead.Fits
	}
	return nil
}

// answer writes a body. Nothing of it may be kept by a cache: what a caller
// sees depends on the token.
func answer(w http.ResponseWriter, status int, body any) {
	text, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "encode answer", http.StatusInternalServerError)
		return
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	if header.Get("Cache-Control") == "" {
		header.Set("Cache-Control", "no-store")
	}
	w.WriteHeader(status)
	w.Write(append(text, '\n')) //nolint:errcheck // the client has gone
}

func wrongMethod(allowed []string) http.Handler {
	allowed = slices.Clone(allowed)
	if slices.Contains(allowed, "GET") {
		allowed = append(allowed, "HEAD")
	}
	slices.Sort(allowed)
	list := strings.Join(allowed, ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", list)
		answer(w, http.StatusMethodNotAllowed, Failure{Error: fmt.Sprintf("method %s is not one of %s", r.Method, list)})
	})
}

func unknownPath(w http.ResponseWriter, r *http.Request) {
	answer(w, http.StatusNotFound, Failure{Error: fmt.Sprintf("no operation at %q; /api/v1/openapi.json lists them", r.URL.Path)})
}

// gb is an amount in GB. It is written with a decimal point, 32.0, so that
// readers who care for types see a float at all times.
type gb float64

// MarshalJSON writes at least one decimal.
func (g gb) MarshalJSON() ([]byte, error) {
	text := strconv.FormatFloat(float64(g), 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return []byte(text), nil
}

// stamp is a time in UTC without a zone, 2024-01-01T12:00:00.
type stamp time.Time

const stampLayout = "2006-01-02T15:04:05"

// MarshalJSON writes the time.
func (s stamp) MarshalJSON() ([]byte, error) {
	return []byte(time.Time(s).UTC().Format(`"` + stampLayout + `"`)), nil
}
