package main

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
)

// metered counts and times what a decider does.
type metered struct {
	*decide.Decider
	seconds *prometheus.HistogramVec
}

// newMetered returns the decider with its metrics, and the registry that holds
// them beside those of the process.
func newMetered(d *decide.Decider) (*metered, *prometheus.Registry) {
	m := &metered{d, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "nomad_gpu_decision_duration_seconds",
		Help:    "Time to decide about a job, with the writing down of it, by outcome: placed, held, refused or failed.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
	}, []string{"outcome"})}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.seconds, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m, registry
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
	for _, d := range decisions {
		if d.Hold != nil {
			return "held"
		}
	}
	return "placed"
}
