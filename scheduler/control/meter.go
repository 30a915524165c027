package control

import (
	"context"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// Reader reads measurements; *nomad.Client does.
type Reader interface {
	MeasureAll(ctx context.Context, nodeIDs []string, each func(nodeID string, m nomad.Measurements))
}

// Meters takes measurements; *decide.Book does.
type Meters interface {
	GPUNodes() []string
	Measured(nodeID string, m nomad.Measurements)
}

// Meter reads what the GPUs do from Nomad's clients, now and then. Every
// replica does, so that every replica can show it.
type Meter struct {
	Reader Reader
	Book   Meters
	Config func() *config.Config
}

// Run measures until the context ends.
func (m *Meter) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(m.Config().MonitorInterval):
			m.Reader.MeasureAll(ctx, m.Book.GPUNodes(), m.Book.Measured)
		}
	}
}
