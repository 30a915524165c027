// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nomad-gpu/nomad-gpu/internal/version"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace"
)

// newTracer exports traces where the operator wants them.
func newTracer(c *config.Config, logger hclog.Logger) (*trace.Tracer, error) {
	if c.Traces.Endpoint == "" {
		return trace.Off(), nil
	}
	logger = logger.Named("traces")
	t := trace.Config{
		Endpoint: c.Traces.Endpoint, Ratio: c.Traces.Ratio, Version: version.String(), Instance: c.Listen.Advertise,
		Failed: func(err error) { logger.Warn("spans are lost", "endpoint", c.Traces.Endpoint, "error", err) },
		Again:  func(lost int) { logger.Info("spans arrive again", "endpoint", c.Traces.Endpoint, "lost", lost) },
	}
	if c.Traces.CAFile != "" {
		var err error
		if t.TLS, err = server.ClientTLS(server.TLSFiles{CAFile: c.Traces.CAFile}); err != nil {
			return nil, fmt.Errorf("telemetry.traces: %w", err)
		}
	}
	return trace.New(context.Background(), t)
}

// lostSpans is the metric of what a collector never got.
func lostSpans(t *trace.Tracer) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "nomad_gpu_trace_spans_lost_total",
		Help: "Spans that were lost because the collector of traces took none, or because too many waited for it.",
	}, func() float64 { return float64(t.Lost()) })
}
