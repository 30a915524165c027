// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/time/rate"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server"
)

// metered counts and times what a decider does.
type metered struct {
	*leader.Decider
	seconds  *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	actions  *prometheus.CounterVec
	// connections that were refused, by the bound that they were above
	connections *prometheus.CounterVec
}

// newMetered returns the decider with its metrics, and the registry that holds
// them beside those of the process.
func newMetered(d *leader.Decider) (*metered, *prometheus.Registry) {
	m := &metered{
		Decider: d,
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nomad_gpu_decision_duration_seconds",
			Help:    "Time to decide about a job, with the writing down of it, by outcome: placed, registered, waits, held, refused or failed.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}, []string{"outcome"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nomad_gpu_refusals_total",
			Help: "Jobs and reservations that were refused, by reason: malformed, quota, room, impossible, too_large, unavailable or nomad.",
		}, []string{"reason"}),
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nomad_gpu_actions_total",
			Help: "What the service did to jobs by itself: evict, reclaim, idle, suspend, move, hold, let_go or fallback; outcome is done, dry_run or failed.",
		}, []string{"action", "outcome"}),
		connections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nomad_gpu_connections_refused_total",
			Help: "Connections that were closed as soon as they arrived: bound is client, for too many of one client, or all.",
		}, []string{"bound"}),
	}
	m.begin()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.seconds, m.refusals, m.actions, m.connections, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m, registry
}

// reasons of refusals by HTTP status. Nomad's own no is a rejection.
var reasons = map[int]string{
	http.StatusBadRequest: "malformed", http.StatusForbidden: "quota", http.StatusConflict: "room", http.StatusUnprocessableEntity: "impossible",
	http.StatusRequestEntityTooLarge: "too_large", http.StatusRequestTimeout: "malformed", http.StatusServiceUnavailable: "unavailable",
}

// begin lets every counter exist from the start, so that its first increase is seen.
func (m *metered) begin() {
	for _, reason := range append(slices.Collect(maps.Values(reasons)), rejected) {
		m.refusals.WithLabelValues(reason)
	}
	for _, bound := range []string{server.BoundClient, server.BoundAll} {
		m.connections.WithLabelValues(bound)
	}
	for _, action := range []string{"evict", "reclaim", "idle", "suspend", "move", "hold", "let_go", "fallback", "recut"} {
		for _, outcome := range []string{"done", "dry_run", "failed"} {
			m.actions.WithLabelValues(action, outcome)
		}
	}
}

// refusing counts connections that are refused, and has the log say so, once a minute.
func (s *service) refusing(m *metered) func(bound string) {
	log, sometimes := s.logger.Named("server"), rate.Sometimes{Interval: time.Minute}
	return func(bound string) {
		m.connections.WithLabelValues(bound).Inc()
		sometimes.Do(func() {
			log.Warn("connections are refused; see listen { max_connections max_connections_per_client }", "bound", bound)
		})
	}
}

// rejected is the reason of what Nomad refused itself.
const rejected = "nomad"

// count counts a record of the audit log.
func (m *metered) count(r server.Record) {
	switch {
	case r.Outcome == "refused":
		m.refusals.WithLabelValues(cmp.Or(reasons[r.Status], "other")).Inc()
	case r.Outcome == "rejected":
		m.refusals.WithLabelValues(rejected).Inc()
	case r.Outcome == "done", r.Outcome == "dry_run", r.Outcome == "failed":
		m.actions.WithLabelValues(r.Action, r.Outcome).Inc()
	}
}

// Decide decides and measures.
func (m *metered) Decide(ctx context.Context, asks []admit.Ask, dryRun bool) ([]admit.Decision, error) {
	begin := time.Now()
	decisions, err := m.Decider.Decide(ctx, asks, dryRun)
	if !dryRun {
		m.seconds.WithLabelValues(outcome(decisions, err)).Observe(time.Since(begin).Seconds())
	}
	return decisions, err
}

func outcome(decisions []admit.Decision, err error) string {
	var refusal *admit.Refusal
	switch {
	case errors.As(err, &refusal):
		return "refused"
	case err != nil:
		return "failed"
	}
	return server.Outcome(decisions)
}
