// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"strings"
	"testing"
	"testing/synctest"
)

// Regression: a job with a long ID was never evicted, since no decision about it could be recorded.
func TestALongNameIsNoShield(t *testing.T) {
	for _, length := range []int{10, 20 << 10, 40 << 10, 70 << 10} {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 1, 2, "preemption {\n min_run_time = \"0s\"\n}\n")
			long := strings.Repeat("x", length)
			h.submit(t.Context(), slowJob("c", long, "0", 1, 20, ""))
			h.submit(t.Context(), slowJob("c", "other", "0", 1, 30, ""))
			h.seconds(30)
			h.submit(t.Context(), slowJob("c", "high", "0", 1, 90, ""))
			h.submit(t.Context(), slowJob("c", long+"high", "0", 1, 90, ""))
			h.seconds(60)
			if got := h.running(); got != "c/high c/"+long+"high" {
				t.Errorf("with a name of %d bytes, %.40s runs", length, got)
			}
		})
	}
}
