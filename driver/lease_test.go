// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// A task that waits for its image holds no share: its registry, and so its author, would say
// for how long. Nomad gives the slices to no other meanwhile, unless the job is stopped.
func TestNoShareIsHeldWhileTheImageIsPulled(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		r := startRegistry(t, false, false)
		r.push(t, "box:1")
		var blobs atomic.Int64
		release := make(chan struct{})
		cfg := e.task(imageConfig(slowRegistry(t, r, &blobs, 0, release)+"/box:1"), reserve(gpuA, 0, 1))
		var start sync.WaitGroup
		start.Go(func() { e.start(cfg) })
		eventually(t, "a layer is asked for", func() bool { return blobs.Load() > 0 })
		_, err := n.dir.Lease(gpu.LeaseID(cfg.AllocID, cfg.Name))
		must.ErrorIs(t, err, statedir.ErrNotFound)
		// What is there of the start is not taken for leftovers.
		own, err := e.driver.configured()
		must.NoError(t, err)
		now := time.Now()
		must.NoError(t, e.driver.reap(own.runtime, own.settings, now, now.Add(time.Hour)))

		close(release)
		start.Wait()
		lease, err := n.dir.Lease(gpu.LeaseID(cfg.AllocID, cfg.Name))
		must.NoError(t, err)
		must.Eq(t, []int{0, 1}, lease.Holdings[0].Slices)
		e.wait(cfg.ID)
	})
}
