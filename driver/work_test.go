// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"
	"testing/synctest"
)

// A driver that has been shut down writes nothing more: it waits for what is at work, such as
// the removal of a container, and for what that starts.
func TestShutdownWaitsForWhatIsAtWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := unconfigured(t)
		removed, noted := make(chan struct{}), make(chan struct{})
		d.work.start(func() {
			<-removed
			d.work.start(func() { <-noted })
		})
		down := false
		go func() { d.Shutdown(); down = true }()
		for _, step := range []chan struct{}{removed, noted} {
			synctest.Wait()
			if down || d.ctx.Err() == nil {
				t.Fatalf("down %t, while work goes on whose context has %v", down, d.ctx.Err())
			}
			close(step)
		}
		synctest.Wait()
		if !down {
			t.Error("a driver without work does not end")
		}
	})
}
