package main

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-hclog"

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
