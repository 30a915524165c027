// SPDX-License-Identifier: MPL-2.0

package guard

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Two calls that hang together must both come back before a third is begun.
func TestGuardStaysShutWhileAnyCallHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(time.Second)
		var release [2]chan struct{}
		answered := make(chan error, len(release))
		for i := range release {
			release[i] = make(chan struct{})
			go func() {
				_, err := Call(g, "GPU-1", func() int { <-release[i]; return i })
				answered <- err
			}()
		}
		for range release {
			if err := <-answered; !errors.Is(err, ErrHangs) {
				t.Errorf("a call that hangs answers %v", err)
			}
		}
		if _, err := Call(g, "GPU-2", func() int { return 0 }); err != nil {
			t.Errorf("another GPU is blocked too: %v", err)
		}
		close(release[0])
		synctest.Wait()
		if _, err := Call(g, "GPU-1", func() int { return 0 }); !errors.Is(err, ErrHangs) {
			t.Errorf("a call was begun beside one that hangs: %v", err)
		}
		close(release[1])
		synctest.Wait()
		if _, err := Call(g, "GPU-1", func() int { return 0 }); err != nil {
			t.Errorf("all calls are back, and the guard stays shut: %v", err)
		}
	})
}
