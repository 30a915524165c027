// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// Reader reads measurements, and what jobs tell of themselves; *nomad.Client does.
type Reader interface {
	MeasureAll(ctx context.Context, nodeIDs []string, each func(nodeID string, m nomad.Measurements))
	Checkpoints(ctx context.Context) (map[nomad.JobKey]time.Time, error)
}

// Meters takes measurements; *state.State does.
type Meters interface {
	GPUNodes(bursting bool) []string
	Measured(nodeID string, m nomad.Measurements)
	Saved(at map[nomad.JobKey]time.Time)
	Trouble(err error)
}

// Meter reads what the GPUs do from Nomad's clients, now and then. Every
// replica does, so that every replica can show it.
type Meter struct {
	Reader Reader
	Meters Meters
	Config func() *config.Config
	// Looks has a word when the measurements are looked at; nil: they always
	// are. There is a request to Nomad for every node, and so none is made in vain.
	Looks <-chan struct{}
	// Always has everything measured, looked at or not: for the ledger.
	Always bool

	looked time.Time // the last look
	last   string    // the node of the last part of a round
	told   string    // the trouble that was told last
}

// watched is how long after a look another one is expected.
const watched = 5 * time.Minute

// nodesPerSecond bounds how many nodes are measured only so that placement avoids hot GPUs.
const nodesPerSecond = 10

// wanted reports whether all nodes are measured: for placement, a queue, or people who look.
func (m *Meter) wanted() bool {
	return m.Looks == nil || m.Always || time.Since(m.looked) < watched || m.Config().Placement.Weights.MeasuredMilli != 0 || m.Config().WatchesIdle()
}

// Run measures until the context ends. The first look after some time has it measure at
// once.
func (m *Meter) Run(ctx context.Context) {
	due := time.NewTimer(m.Config().MonitorInterval)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.Looks:
			known := m.wanted()
			if m.looked = time.Now(); known {
				continue
			}
		case <-due.C:
			m.readCheckpoints(ctx)
		}
		if nodes := m.nodes(); len(nodes) > 0 {
			m.Reader.MeasureAll(ctx, nodes, m.Meters.Measured)
		}
		due.Reset(m.Config().MonitorInterval)
	}
}

// nodes are those to measure now. Placement alone needs only those where tasks may use more than
// they are promised; where these are very many, some of them by turns.
func (m *Meter) nodes() []string {
	c := m.Config()
	switch {
	case m.wanted():
		return m.Meters.GPUNodes(false)
	case c.Placement.Weights.HeatMilli == 0:
		return nil
	}
	nodes := m.Meters.GPUNodes(true)
	if most := max(1, int(nodesPerSecond*c.MonitorInterval/time.Second)); len(nodes) > most {
		at, found := slices.BinarySearch(nodes, m.last)
		if found {
			at++
		}
		nodes = slices.Concat(nodes[at:], nodes[:at])[:most]
		m.last = nodes[most-1]
	}
	return nodes
}

// readCheckpoints hears which jobs saved their work. A failure is told once, and
// earlier news count on.
func (m *Meter) readCheckpoints(ctx context.Context) {
	saved, err := m.Reader.Checkpoints(ctx)
	switch {
	case err == nil:
		m.told = ""
		m.Meters.Saved(saved)
	case ctx.Err() == nil && err.Error() != m.told:
		m.told = err.Error()
		m.Meters.Trouble(err)
	}
}
