// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// poolsInterval is how often Nomad is asked for batch queues of node pools.
const poolsInterval = 30 * time.Second

// pools knows which node pools with GPUs have a batch queue of Nomad's own.
type pools struct {
	withGPUs func() []string
	ask      func(ctx context.Context, pool string) (*nomad.BatchQueue, error)
	logger   hclog.Logger
	found    atomic.Pointer[[]view.BatchQueue]
}

// poolsWithGPUs are node pools that can have a batch queue, sorted: the built-in one can have none.
func (s *service) poolsWithGPUs() (names []string) {
	s.state.View(func(r *state.Reader) {
		for _, id := range r.Cluster.NodeIDs() {
			if n := r.Cluster.Node(id).Plan; len(n.GPUs) > 0 && n.Pool != "default" {
				names = append(names, n.Pool)
			}
		}
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// queues are those found last, by pool.
func (p *pools) queues() []view.BatchQueue {
	if list := p.found.Load(); list != nil {
		return *list
	}
	return nil
}

// run looks until the context ends.
func (p *pools) run(ctx context.Context) {
	tick := time.NewTicker(poolsInterval)
	defer tick.Stop()
	for {
		p.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look asks about every pool that has GPUs. Where Nomad does not answer, the last answers stay.
func (p *pools) look(ctx context.Context) {
	var next []view.BatchQueue
	before := p.queues()
	for _, name := range p.withGPUs() {
		queue, err := p.ask(ctx, name)
		if err != nil {
			p.logger.Debug("the last answers stay", "error", err)
			return
		}
		if queue == nil {
			continue
		}
		found := view.BatchQueue{Pool: name, Type: queue.Type, Jobs: queue.Jobs}
		if !slices.ContainsFunc(before, func(q view.BatchQueue) bool { return q.Pool == name }) {
			p.logger.Warn(found.Warning())
		}
		next = append(next, found)
	}
	p.found.Store(&next)
}
