package driver

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// An image can take longer to pull than leftovers are left alone. The share of
// the task that waits for it must not be given to another meanwhile.
func TestAShareIsHeldWhileTheImageIsPulled(t *testing.T) {
	forEachOwnContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		r := startRegistry(t, false, false)
		r.push(t, "box:1")
		var blobs atomic.Int64
		release := make(chan struct{})
		cfg := e.task(imageConfig(slowRegistry(t, r, &blobs, 0, release)+"/box:1"), reserve(gpuA, 0, 1))
		var start sync.WaitGroup
		start.Go(func() { e.start(cfg) })
		eventually(t, "a layer is asked for", func() bool { return blobs.Load() > 0 })

		own, err := e.driver.configured()
		must.NoError(t, err)
		now := time.Now()
		must.NoError(t, e.driver.reap(own.runtime, own.settings, now, now.Add(time.Hour)))
		lease, err := n.dir.Lease(gpu.LeaseID(cfg.AllocID, cfg.Name))
		must.NoError(t, err)
		must.True(t, lease.Live(), must.Sprint("the lease of a task that is being started was ended"))

		close(release)
		start.Wait()
		e.wait(cfg.ID)
	})
}
