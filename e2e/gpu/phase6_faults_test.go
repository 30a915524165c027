// SPDX-License-Identifier: MPL-2.0

package gpu

import "testing"

// What a fault of one client does to the one beside it.
func TestTheFaultOfAClient(t *testing.T) {
	g := idle(t)
	for _, tc := range []struct{ how, address string }{{"a misaligned address", "1"}, {"an illegal address", "256"}} {
		t.Run(tc.how, func(t *testing.T) {
			beside(t, g.UUID, false, func(d *supervisedDaemon) {
				figure(t, "the culprit: %s", start(t, g.UUID, d.status, limitTo(1024), "fault", tc.address).started(t).outcome())
			})
		})
	}
}
