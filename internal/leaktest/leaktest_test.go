// SPDX-License-Identifier: MPL-2.0

package leaktest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// What ends a while later is no leak; what stays is one, and is named.
func TestWhatEndsByItselfIsNoLeak(t *testing.T) {
	for after, leaks := range map[time.Duration]bool{patience / 2: false, 2 * patience: true} {
		synctest.Test(t, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			go outlive(after)
			if err := Find(before); (err != nil) != leaks || leaks && !strings.Contains(err.Error(), "leaktest.outlive") {
				t.Errorf("a goroutine that ends after %s: %v", after, err)
			}
			time.Sleep(after) // until it has ended
		})
	}
}

func outlive(d time.Duration) { time.Sleep(d) }
